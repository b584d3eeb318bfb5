//! Vectors in responses: as arrays of numbers, or as their bytes in base64, which are a third as long and cost no
//! parsing of numbers.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize, Serializer};
use utoipa::openapi::schema::{ArrayBuilder, KnownFormat, ObjectBuilder, OneOfBuilder, Schema, Type};
use utoipa::openapi::{RefOr, SchemaFormat};
use utoipa::{PartialSchema, ToSchema};

/// How vectors are written; default `float`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EncodingFormat {
    /// An array of numbers.
    #[default]
    Float,
    /// A string: 32-bit floats, little-endian, one after another, in base64 with padding.
    Base64,
}

/// A vector and how it is written.
#[derive(Clone, Debug, PartialEq)]
pub struct Vector {
    /// Its numbers.
    pub numbers: Vec<f32>,
    /// How it is written.
    pub format: EncodingFormat,
}

impl Serialize for Vector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.format {
            EncodingFormat::Float => self.numbers.serialize(serializer),
            EncodingFormat::Base64 => {
                let bytes: Vec<u8> = self.numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
                serializer.serialize_str(&STANDARD.encode(bytes))
            }
        }
    }
}

impl PartialSchema for Vector {
    fn schema() -> RefOr<Schema> {
        let float = SchemaFormat::KnownFormat(KnownFormat::Float);
        let number = ObjectBuilder::new().schema_type(Type::Number).format(Some(float));
        let text = ObjectBuilder::new().schema_type(Type::String).content_encoding("base64");
        OneOfBuilder::new()
            .item(ArrayBuilder::new().items(number))
            .item(text)
            .description(Some(
                "A vector: an array of numbers, or with `\"encoding_format\": \"base64\"` a string, the base64 of its \
                 32-bit floats, little-endian, one after another. `/v1/info` has its length.",
            ))
            .into()
    }
}

impl ToSchema for Vector {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_hold_the_same_bits() {
        let numbers = vec![0.1_f32, -0.0, 1.0e-40, f32::MAX, 1.0 / 3.0];
        let write = |format| serde_json::to_string(&Vector { numbers: numbers.clone(), format }).unwrap();
        let read: Vec<f32> = serde_json::from_str(&write(EncodingFormat::Float)).unwrap();
        let text: String = serde_json::from_str(&write(EncodingFormat::Base64)).unwrap();
        let bytes = STANDARD.decode(text).unwrap();
        let decoded: Vec<f32> =
            bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
        let bits = |numbers: &[f32]| numbers.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
        assert_eq!((bits(&read), bits(&decoded)), (bits(&numbers), bits(&numbers)));
    }
}
