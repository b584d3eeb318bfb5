//! The expiry time of a certificate, read from its DER (RFC 5280, section 4.1).
//!
//! Skips to the field `validity` and ignores all others; verifying the certificate is up to its clients. Any input is
//! safe.

/// Tags of ASN.1, as they stand in DER.
mod tag {
    pub const INTEGER: u8 = 0x02;
    pub const UTC_TIME: u8 = 0x17;
    pub const GENERALIZED_TIME: u8 = 0x18;
    pub const SEQUENCE: u8 = 0x30;
    /// `[0]`, before the version.
    pub const VERSION: u8 = 0xA0;
}

/// `notAfter` of a certificate, seconds since the Unix epoch; `None` where it cannot be found.
pub(super) fn not_after(certificate: &[u8]) -> Option<i64> {
    let mut signed = Der(Der(Der(certificate).take(tag::SEQUENCE)?).take(tag::SEQUENCE)?);
    if signed.next_tag() == Some(tag::VERSION) {
        signed.take(tag::VERSION)?;
    }
    signed.take(tag::INTEGER)?;
    // Signature algorithm and issuer.
    signed.take(tag::SEQUENCE)?;
    signed.take(tag::SEQUENCE)?;
    let mut validity = Der(signed.take(tag::SEQUENCE)?);
    validity.take_time()?;
    validity.take_time()
}

/// Bytes of DER that are not read yet.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    fn next_tag(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// The content of the next element, which has this tag.
    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (&[found, short], rest) = self.0.split_first_chunk::<2>()?;
        if found != tag {
            return None;
        }
        // Above 127 the byte is the number of length bytes that follow; lengths beyond 32 bits are refused.
        let (length, rest) = match short {
            0..=0x7f => (usize::from(short), rest),
            0x81..=0x84 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(short - 0x80))?;
                (bytes.iter().fold(0, |length, &byte| length << 8 | usize::from(byte)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some(content)
    }

    /// A time as `YYMMDDhhmmssZ` (of 1950 to 2049) or `YYYYMMDDhhmmssZ`, seconds since the Unix epoch.
    fn take_time(&mut self) -> Option<i64> {
        let (text, years) = match self.next_tag()? {
            tag::UTC_TIME => (self.take(tag::UTC_TIME)?, 2),
            tag::GENERALIZED_TIME => (self.take(tag::GENERALIZED_TIME)?, 4),
            _ => return None,
        };
        let digits = text.strip_suffix(b"Z")?;
        if digits.len() != years + 10 || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let (year, rest) = digits.split_at_checked(years)?;
        let number =
            |digits: &[u8]| digits.iter().fold(0, |value, &digit| value * 10 + i64::from(digit - b'0'));
        let year = match number(year) {
            year if years == 4 => year,
            year if year < 50 => 2000 + year,
            year => 1900 + year,
        };
        let [month, day, hour, minute, second] =
            std::array::from_fn(|i| number(rest.get(i * 2..i * 2 + 2).unwrap_or_default()));
        let possible =
            (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second < 60;
        possible.then(|| days_since_epoch(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second)
    }
}

/// Days from 1970-01-01 to a day of the Gregorian calendar. Years begin in March here, so that a leap day is the last
/// of its year: 153 days are five months from March or August on, 146,097 are 400 years.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use tokio_rustls::rustls::pki_types::CertificateDer;
    use tokio_rustls::rustls::pki_types::pem::PemObject;

    use super::*;

    #[test]
    fn days_are_counted_from_the_epoch() {
        for (date, days) in [
            ((1970, 1, 1), 0),
            ((1969, 12, 31), -1),
            ((2000, 2, 29), 11_016),
            ((2000, 3, 1), 11_017),
            ((2100, 3, 1), 47_541),
            ((2120, 1, 1), 54_786),
        ] {
            assert_eq!(days_since_epoch(date.0, date.1, date.2), days, "{date:?}");
        }
    }

    #[test]
    fn the_expiry_of_a_certificate_is_read() {
        let pem = include_bytes!("../../tests/it/tls/one.crt");
        let der = CertificateDer::from_pem_slice(pem).unwrap();
        assert_eq!(not_after(&der), Some(54_786 * 86_400), "tests/it/tls/make.sh: until 2120");
        for cut in 0..180 {
            assert_eq!(not_after(&der[..cut]), None, "cut at {cut}");
        }
    }

    #[test]
    fn times_are_of_two_forms_and_nothing_else() {
        let time = |tag: u8, text: &str| {
            let mut der = vec![tag, text.len() as u8];
            der.extend(text.bytes());
            Der(&der).take_time()
        };
        assert_eq!(time(0x17, "700101000001Z"), Some(1));
        assert_eq!(time(0x17, "491231235959Z"), Some(2_524_607_999));
        assert_eq!(time(0x17, "500101000000Z"), Some(-631_152_000));
        assert_eq!(time(0x18, "20380119031408Z"), Some(1 << 31));
        assert_eq!(time(0x18, "99991231235959Z"), Some(253_402_300_799), "RFC 5280: no end");
        for odd in
            ["", "Z", "700101000001", "701301000001Z", "70010100000xZ", "7001010000001Z", "700101240000Z"]
        {
            assert_eq!(time(0x17, odd), None, "{odd}");
        }
        assert_eq!(time(0x16, "700101000001Z"), None);
    }
}
