"""Messages in the wire format of a schema registry, made by the serializers of confluent-kafka, with the values that they
hold: tests/golden/avro.json, which tests/it/registry.rs reads. Needs `confluent-kafka[avro,json,schemaregistry]`.

Every message has its topic, its key and its value in base64, and the value as JSON. The schemas are those that the
registry's client gave ids, with what it would respond for them.
"""

import base64
import datetime
import decimal
import json
import pathlib

import confluent_kafka
import fastavro
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

CLIENT = SchemaRegistryClient.new_client({"url": "mock://"})
MESSAGES = []


def plain(value):
    """A value as the JSON that it is read as."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    return value


def message(topic, value, schema, key=None, key_schema=None, references=()):
    """A message as a producer with these schemas sends it."""

    def write(field, value, schema, references=()):
        described = Schema(json.dumps(schema), "AVRO", list(references))
        serializer = AvroSerializer(CLIENT, described)
        return serializer(value, SerializationContext(topic, field))

    data = None if key is None else write(MessageField.KEY, key, key_schema)
    body = None if value is None else write(MessageField.VALUE, value, schema, references)
    MESSAGES.append(
        {
            "topic": topic,
            "key": data and base64.b64encode(data).decode(),
            "value": body and base64.b64encode(body).decode(),
            "holds": plain(value),
        }
    )


def record(name, *fields):
    """A record of these fields."""
    return {"type": "record", "name": name, "fields": [dict(zip(("name", "type", "default"), field)) for field in fields]}


def visits():
    """A topic whose schema evolves: fields come first, change their type, and go."""
    first = record("Visit", ("who", "long"), ("page", "string"), ("at", "long"))
    for i in range(20):
        message("visits", {"who": i, "page": f"/p{i % 3}", "at": 100 + i}, first)
    second = record(
        "Visit",
        ("session", ["null", "string"], None),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("who", ["long", "string"]),
        ("page", "string"),
    )
    for i in range(20, 40):
        at = datetime.datetime.fromtimestamp((100 + i) / 1000, datetime.timezone.utc)
        who = i if i % 2 else str(i)
        message("visits", {"session": f"s{i}" if i % 3 else None, "at": at, "who": who, "page": f"/p{i % 3}"}, second)


def orders():
    """Changes of a table, as Debezium's converter writes them: keys are Avro, too, and types are named once."""
    money = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
    row = record("Value", ("id", "long"), ("user_id", "int"), ("product_id", "int"), ("price", ["null", money], None))
    row["namespace"] = "shop.orders"
    source = record("Source", ("connector", "string"), ("ts_ms", "long"), ("snapshot", ["null", "boolean"], None))
    envelope = record(
        "Envelope",
        ("before", ["null", row], None),
        ("after", ["null", "shop.orders.Value"], None),
        ("source", source),
        ("op", "string"),
        ("ts_ms", ["null", "long"], None),
    )
    envelope["namespace"] = "shop.orders"
    key_schema = record("Key", ("id", "long"))
    for i in range(12):
        op = "rcu"[i % 3]
        after = {"id": i, "user_id": i % 4, "product_id": i % 5, "price": decimal.Decimal(i * 995).scaleb(-2)}
        source_row = {"connector": "postgresql", "ts_ms": 1000 + i, "snapshot": i % 3 == 0}
        change = {"before": None, "after": after, "source": source_row, "op": op, "ts_ms": None}
        message("orders", change, envelope, {"id": i}, key_schema)


def baskets():
    """Arrays of a type that another schema has, maps, enumerations, bytes and floats."""
    item = record("Item", ("sku", "string"), ("price", "float"), ("tags", {"type": "map", "values": "double"}))
    item["namespace"] = "shop"
    CLIENT.register_schema("item-value", Schema(json.dumps(item), "AVRO"))
    basket = record(
        "Basket",
        ("id", {"type": "fixed", "name": "Id", "size": 4}),
        ("state", {"type": "enum", "name": "State", "symbols": ["OPEN", "PAID"]}),
        ("at", "int"),
        ("items", {"type": "array", "items": "shop.Item"}),
    )
    reference = SchemaReference("shop.Item", "item-value", 1)
    for i in range(10):
        items = [{"sku": f"x{n}", "price": n + 0.1, "tags": {"é\"": n / 2}} for n in range(i % 4)]
        value = {"id": bytes([0, i, 127, 255]), "state": "PAID" if i % 2 else "OPEN", "at": 50 + i, "items": items}
        message("baskets", value, basket, references=[reference])


def likes():
    """JSON behind the header, by the serializer for JSON Schema."""
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Like",
        "type": "object",
        "properties": {"src": {"type": "string"}, "dst": {"type": "integer"}, "ts": {"type": "integer"}},
    }
    serializer = JSONSerializer(json.dumps(schema), CLIENT)
    for i in range(10):
        value = {"src": f"u{i}", "dst": i % 3, "ts": 10 + i}
        data = serializer(value, SerializationContext("likes", MessageField.VALUE))
        MESSAGES.append({"topic": "likes", "key": None, "value": base64.b64encode(data).decode(), "holds": value})


def response(schema):
    """What a registry responds for a schema."""
    document = {"schema": schema.schema_str}
    if schema.schema_type != "AVRO":
        document["schemaType"] = schema.schema_type
    if schema.references:
        document["references"] = [
            {"name": part.name, "subject": part.subject, "version": part.version} for part in schema.references
        ]
    return document


def main():
    """Writes the file."""
    for make in (visits, orders, baskets, likes):
        make()
    # What the messages name, and what they name in turn.
    ids = {int.from_bytes(base64.b64decode(m[part])[1:5], "big") for m in MESSAGES for part in ("key", "value") if m[part]}
    schemas = {str(id_): response(CLIENT.get_schema(id_)) for id_ in sorted(ids)}
    item = response(CLIENT.get_version("item-value", 1).schema)
    versions = {"confluent-kafka": confluent_kafka.__version__, "fastavro": fastavro.__version__}
    document = {
        "made_by": versions,
        "schemas": schemas,
        "subjects": {"item-value/versions/1": item},
        "messages": MESSAGES,
    }
    path = pathlib.Path(__file__).with_name("avro.json")
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
