"""Messages in the wire format of a schema registry, made by the Protobuf serializer of confluent-kafka, with the values that
they hold: tests/golden/protobuf.json, which tests/it/registry.rs reads. Needs `confluent-kafka[protobuf,schemaregistry]` and
`grpcio-tools`.

The schemas are texts, as a registry responds with them; the serializer itself sends descriptors, which a registry turns into
texts.
"""

import base64
import json
import pathlib
import tempfile

import confluent_kafka
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from grpc_tools import protoc

CLIENT = SchemaRegistryClient.new_client({"url": "mock://"})

ITEM = """syntax = "proto3";
package parts;

message Item {
  string sku = 1;
  float price = 2;
}
"""
FIRST = """syntax = "proto3";
package shop;

message Visit {
  int64 who = 1;
  string page = 2;
  int64 at = 3;
}
"""
LATER = """syntax = "proto3";
package shop;

import "google/protobuf/timestamp.proto";

message Ping {
  bool on = 1;
}
message Visit {
  reserved 3;
  enum Device {
    UNKNOWN = 0;
    PHONE = 1;
  }
  int64 who = 1;
  string page = 2;
  optional string session = 4;
  Device device = 5;
  google.protobuf.Timestamp when = 6;
}
"""
BASKET = """syntax = "proto3";
package shop;

import "parts/item.proto";

message Outer {
  message Basket {
    uint64 id = 1;
    repeated parts.Item items = 2;
    map<string, double> tags = 3;
    bytes raw = 4;
    sint32 change = 5;
    oneof owner {
      string user = 6;
      fixed64 device = 7;
    }
  }
}
"""
MESSAGES = []
SCHEMAS = {}


def compiled(name, text, imports=()):
    """The messages of a schema, by their full names."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, content in [(name, text), *imports]:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content)
        out = root / "set"
        include = pathlib.Path(protoc.__file__).parent / "_proto"
        arguments = ["protoc", f"-I{root}", f"-I{include}", "--include_imports", f"--descriptor_set_out={out}", name]
        assert protoc.main(arguments) == 0
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return lambda full: message_factory.GetMessageClass(pool.FindMessageTypeByName(full))


def message(topic, kind, text, value, references=()):
    """A message as a producer sends it; `value` in Protobuf's JSON."""
    built = json_format.ParseDict(value, kind())
    serializer = ProtobufSerializer(kind, CLIENT, {"use.deprecated.format": False})
    data = serializer(built, SerializationContext(topic, MessageField.VALUE))
    document = {"schema": text, "schemaType": "PROTOBUF"}
    if references:
        document["references"] = list(references)
    SCHEMAS[str(int.from_bytes(data[1:5], "big"))] = document
    holds = json_format.MessageToDict(built, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    MESSAGES.append({"topic": topic, "value": base64.b64encode(data).decode(), "holds": holds})


def main():
    """Writes the file."""
    first = compiled("first.proto", FIRST)("shop.Visit")
    for i in range(10):
        message("visits", first, FIRST, {"who": i, "page": f"/p{i % 3}", "at": 100 + i})
    later = compiled("later.proto", LATER)("shop.Visit")
    for i in range(10, 20):
        value = {"who": i, "page": f"/p{i % 3}", "device": "PHONE" if i % 2 else "UNKNOWN"}
        value["when"] = f"2026-01-31T12:00:{i}Z"
        if i % 3:
            value["session"] = f"s{i}" if i % 4 else ""
        message("visits", later, LATER, value)
    basket = compiled("basket.proto", BASKET, [("parts/item.proto", ITEM)])("shop.Outer.Basket")
    for i in range(10):
        items = [{"sku": f"x{n}", "price": n + 0.5} for n in range(i % 4)]
        value = {"id": 2**63 + i, "items": items, "tags": {'é"': i / 2}, "raw": base64.b64encode(bytes([0, i])).decode()}
        value |= {"change": -i, "user": f"u{i}"} if i % 2 else {"change": i, "device": 7}
        reference = {"name": "parts/item.proto", "subject": "item", "version": 1}
        message("baskets", basket, BASKET, value, [reference])
    document = {
        "made_by": {"confluent-kafka": confluent_kafka.__version__},
        "schemas": SCHEMAS,
        "subjects": {"item/versions/1": {"schema": ITEM, "schemaType": "PROTOBUF"}},
        "messages": MESSAGES,
    }
    path = pathlib.Path(__file__).with_name("protobuf.json")
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
