//! Learning curves as an SVG image, written by hand: one line per curve over the same numbered points.

use std::fmt::Write as _;

/// Size of the image, and of the space around the plotted area: left, top, right, bottom.
const SIZE: (f64, f64) = (640.0, 400.0);
const SPACE: (f64, f64, f64, f64) = (56.0, 24.0, 16.0, 64.0);

/// Color of each curve in turn; the first two are distinguishable with color blindness.
const COLORS: [&str; 4] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];

/// Horizontal lines, at least.
const LINES: f64 = 4.0;

/// Values at the points 1, 2, 3, …; a point without a value breaks the line.
pub struct Curve {
    /// The curve's title.
    pub name: String,
    /// What is counted along the horizontal axis.
    pub axis: &'static str,
    /// The values, in percent.
    pub values: Vec<Option<f64>>,
}

/// The range of values shown and the distance of its lines.
struct Scale {
    low: f64,
    high: f64,
    step: f64,
}

impl Scale {
    /// Whole steps of 1, 2 or 5 times a power of ten around all values.
    fn around(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
        let (low, high) = if low > high { (0.0, 100.0) } else { (low, high) };
        let rough = ((high - low) / LINES).max(0.05);
        let power = 10_f64.powf(rough.log10().floor());
        let step =
            [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough).unwrap_or(power);
        let (low, high) = ((low / step).floor() * step, (high / step).ceil() * step);
        Self { low, high: if high > low { high } else { low + step }, step }
    }

    fn height(&self, value: f64) -> f64 {
        let share = (value - self.low) / (self.high - self.low);
        SIZE.1 - SPACE.3 - share * (SIZE.1 - SPACE.1 - SPACE.3)
    }
}

/// The image; `marks` are points with a vertical line.
#[must_use]
pub fn svg(curves: &[Curve], marks: &[usize]) -> String {
    let points = curves.iter().map(|curve| curve.values.len()).max().unwrap_or(0);
    let scale = Scale::around(curves.iter().flat_map(|curve| curve.values.iter().copied().flatten()));
    let across = |point: usize| {
        let share = if points < 2 { 0.5 } else { point as f64 / (points - 1) as f64 };
        SPACE.0 + share * (SIZE.0 - SPACE.0 - SPACE.2)
    };
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        w = SIZE.0,
        h = SIZE.1,
    );
    frame(&mut out, &scale, points, across, curves.first().map_or("", |curve| curve.axis));
    for &mark in marks {
        let (x, top, bottom) = (across(mark), SPACE.1, SIZE.1 - SPACE.3);
        let _ =
            writeln!(out, "<path d=\"M{x:.1} {top}V{bottom}\" stroke=\"#999\" stroke-dasharray=\"4 4\"/>");
    }
    let radius = if points > 40 { 1.5 } else { 3.0 };
    for (i, curve) in curves.iter().enumerate() {
        let color = COLORS[i % COLORS.len()];
        let at = |(point, value): (usize, &Option<f64>)| value.map(|v| (across(point), scale.height(v)));
        let places: Vec<Option<(f64, f64)>> = curve.values.iter().enumerate().map(at).collect();
        for run in places.split(Option::is_none) {
            let line: Vec<String> = run.iter().flatten().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let _ = writeln!(
                out,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>",
                line.join(" ")
            );
        }
        for (x, y) in places.iter().flatten() {
            let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{color}\"/>");
        }
        let x = SPACE.0 + i as f64 * (SIZE.0 - SPACE.0) / curves.len().max(2) as f64;
        let (y, name) = (SIZE.1 - 12.0, escaped(&curve.name));
        let _ = writeln!(out, "<text x=\"{x:.0}\" y=\"{y:.0}\" fill=\"{color}\">{name}</text>");
    }
    out.push_str("</svg>\n");
    out
}

/// Horizontal lines with their values, and the numbers of the points.
fn frame(out: &mut String, scale: &Scale, points: usize, across: impl Fn(usize) -> f64, axis: &str) {
    let (left, right) = (SPACE.0, SIZE.0 - SPACE.2);
    let lines = ((scale.high - scale.low) / scale.step).round() as usize;
    let digits = (-scale.step.log10().floor()).clamp(0.0, 3.0) as usize;
    for line in 0..=lines {
        let value = scale.low + line as f64 * scale.step;
        let y = scale.height(value);
        let _ = writeln!(out, "<path d=\"M{left} {y:.1}H{right}\" stroke=\"#ddd\"/>");
        let (x, y) = (left - 6.0, y + 4.0);
        let _ = writeln!(out, "<text x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{value:.digits$}</text>");
    }
    let (below, every) = (SIZE.1 - SPACE.3 + 18.0, points.div_ceil(20).max(1));
    for point in (0..points).step_by(every) {
        let (x, number) = (across(point), point + 1);
        let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{below}\" text-anchor=\"middle\">{number}</text>");
    }
    let (x, y) = ((left + right) / 2.0, below + 16.0);
    let _ = writeln!(
        out,
        "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" fill=\"#555\">{}</text>",
        escaped(axis)
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_lie_inside_and_higher_values_stand_higher() {
        let values = vec![Some(91.5), None, Some(93.25), Some(97.0)];
        let image = svg(
            &[
                Curve { name: "a<b".to_owned(), axis: "epoch", values },
                Curve { name: "flat".to_owned(), axis: "epoch", values: vec![Some(92.0); 4] },
            ],
            &[2],
        );
        assert_eq!(image.matches("stroke-dasharray").count(), 1);
        assert!(image.starts_with("<svg ") && image.ends_with("</svg>\n"));
        assert!(image.contains("a&lt;b") && image.contains(">epoch<") && image.contains(">flat<"));
        let circles: Vec<(f64, f64)> = image
            .lines()
            .filter_map(|line| line.strip_prefix("<circle cx=\""))
            .map(|rest| {
                let numbers: Vec<&str> = rest.split('"').collect();
                (numbers[0].parse().unwrap(), numbers[2].parse().unwrap())
            })
            .collect();
        assert_eq!(circles.len(), 7);
        assert!(circles.iter().all(|(x, y)| (56.0..=624.0).contains(x) && (24.0..=336.0).contains(y)));
        assert!(circles[0].1 > circles[1].1 && circles[1].1 > circles[2].1);
        assert_eq!(image.matches("<polyline").count(), 3, "the gap breaks the line");
    }

    #[test]
    fn scales_have_round_steps_around_the_values() {
        for (values, expected) in [
            (vec![76.2, 93.4], (75.0, 95.0, 5.0)),
            (vec![97.31, 97.42], (97.3, 97.45, 0.05)),
            (vec![50.0], (50.0, 50.05, 0.05)),
            (vec![], (0.0, 100.0, 50.0)),
        ] {
            let scale = Scale::around(values.into_iter());
            let found = [scale.low, scale.high, scale.step];
            let expected = [expected.0, expected.1, expected.2];
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?} {expected:?}");
        }
        assert!(svg(&[], &[]).contains("</svg>"));
    }
}
