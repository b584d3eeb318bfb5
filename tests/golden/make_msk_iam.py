"""Tokens for Amazon MSK by the official signer, at fixed times: tests/golden/msk_iam.json, which src/ingest/kafka/login/msk.rs
reads. Needs `aws-msk-iam-sasl-signer-python`. The credentials are those of AWS's documentation, and of nobody.
"""

import datetime
import importlib.metadata
import json
import pathlib

import aws_msk_iam_sasl_signer.MSKAuthTokenProvider as signer
import botocore.auth
from botocore.credentials import Credentials

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
CASES = [
    # Region, key, secret, session token, and the moment.
    ("us-east-1", "AKIAIOSFODNN7EXAMPLE", SECRET, None, "2026-01-31T12:00:00"),
    ("eu-central-1", "ASIAIOSFODNN7EXAMPLE", SECRET, "IQoJb3JpZ2luX2VjE+/a b~c=&d%é", "2024-02-29T23:59:59"),
    ("cn-north-1", "AKIAI44QH8DHBEXAMPLE", "short", "t", "2031-12-01T00:00:01"),
]


def main():
    agent = f"{signer.LIB_NAME}/{importlib.metadata.version(signer.LIB_NAME)}"
    cases = []
    for region, key, secret, session, moment in CASES:
        now = datetime.datetime.fromisoformat(moment).replace(tzinfo=datetime.timezone.utc)
        botocore.auth.get_current_datetime = lambda remove_tzinfo=True, now=now: (
            now.replace(tzinfo=None) if remove_tzinfo else now
        )
        make = vars(signer)["__construct_auth_token"]
        token, expires_ms = make(region, Credentials(key, secret, session))
        cases.append(
            {
                "region": region,
                "key": key,
                "secret": secret,
                "session": session,
                "unix_ms": int(now.timestamp() * 1000),
                "agent": agent,
                "token": token,
                "expires_unix_ms": expires_ms,
            }
        )
    path = pathlib.Path(__file__).parent / "msk_iam.json"
    path.write_text(json.dumps(cases, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
