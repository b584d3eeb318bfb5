//! Compression of large responses with gzip, for clients whose `Accept-Encoding` allows it. Small ones are not worth
//! the time: the daemon computes on the same cores.

use std::convert::Infallible;
use std::io::{self, Write};

use axum::extract::FromRequestParts;
use axum::http::header::ACCEPT_ENCODING;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use flate2::Compression;
use flate2::write::GzEncoder;

/// Whether a client accepts gzip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AcceptsGzip(pub bool);

impl AcceptsGzip {
    /// By the header of a request: gzip, or anything, with a weight above 0. RFC 9110, section 12.5.3.
    fn of(headers: &HeaderMap) -> Self {
        let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
        let codings = values.flat_map(|value| value.split(','));
        let (mut gzip, mut any) = (None, None);
        for coding in codings {
            let (name, parameters) = coding.split_once(';').unwrap_or((coding, ""));
            let weight = parameters.split_once('=').map_or("1", |(_, weight)| weight.trim());
            let is_accepted = weight.parse::<f32>().is_ok_and(|weight| weight > 0.0);
            match name.trim() {
                name if ["gzip", "x-gzip"].iter().any(|own| name.eq_ignore_ascii_case(own)) => {
                    gzip = Some(is_accepted);
                }
                "*" => any = Some(is_accepted),
                _ => {}
            }
        }
        Self(gzip.or(any).unwrap_or(false))
    }
}

impl<S: Sync> FromRequestParts<S> for AcceptsGzip {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(&parts.headers))
    }
}

/// The value of `Content-Encoding` of what [`gzip`] returns.
pub(super) const GZIP: HeaderValue = HeaderValue::from_static("gzip");

/// The text, compressed.
pub(super) fn gzip(text: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(text.len() / 2), Compression::fast());
    encoder.write_all(text)?;
    let mut packed = encoder.finish()?;
    packed.shrink_to_fit();
    Ok(packed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_accepted_by_its_name_or_by_a_wildcard_with_a_weight() {
        let accepts = |values: &[&'static str]| {
            let headers =
                values.iter().map(|value| (ACCEPT_ENCODING, HeaderValue::from_static(value))).collect();
            AcceptsGzip::of(&headers).0
        };
        for accepted in
            [&["gzip"][..], &["x-gzip"], &["br, GZip"], &["br;q=1", "gzip; q=0.5"], &["*"], &["*;q=0, gzip"]]
        {
            assert!(accepts(accepted), "{accepted:?}");
        }
        for refused in
            [&[][..], &["identity"], &["gzip;q=0"], &["*, gzip;q=0.0"], &["gzip;q=x"], &["br, zstd"]]
        {
            assert!(!accepts(refused), "{refused:?}");
        }
    }
}
