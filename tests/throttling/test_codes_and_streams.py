"""What the answers of particular APIs mean: error codes of AWS, and streams that end with an error."""

import json
from binascii import crc32
from collections.abc import Callable
from typing import Any

import pytest

from runcue.core.model.failure import classify
from tests.throttling.clients import ASKED, aws, raised
from tests.throttling.farside import Answer, FarSide


def as_json(code: str, status: int, **headers: str) -> Answer:
    """An error of AWS as most of its services write it."""
    body = json.dumps({"__type": f"com.amazonaws.far#{code}", "message": "no"}).encode()
    return Answer(status, {"x-amzn-ErrorType": code, **headers}, body)


def as_xml(code: str, status: int, **headers: str) -> Answer:
    """An error of AWS as S3 writes it."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    return Answer(status, headers, body, "application/xml")


def event(*, payload: bytes, **headers: str) -> bytes:
    """One message of a stream of AWS: lengths, headers and payload, each part with its checksum."""
    lines = b"".join(
        bytes([len(name) + 1]) + b":" + name.replace("_", "-").encode()
        + b"\x07" + len(value).to_bytes(2, "big") + value.encode()
        for name, value in headers.items()
    )  # fmt: skip
    start = (16 + len(lines) + len(payload)).to_bytes(4, "big") + len(lines).to_bytes(4, "big")
    message = start + crc32(start).to_bytes(4, "big") + lines + payload
    return message + crc32(message).to_bytes(4, "big")


def as_stream(code: str) -> Answer:
    """A stream of AWS that ends at once, with an error."""
    body = event(
        message_type="exception",
        exception_type=code,
        content_type="application/json",
        payload=b'{"message":"no"}',
    )
    return Answer(200, {}, body, "application/vnd.amazon.eventstream")


def call_dynamodb(client: Any) -> object:
    return client.describe_table(TableName="pages")


def call_s3(client: Any) -> object:
    return client.get_object(Bucket="pages", Key="1")


def call_lambda(client: Any) -> object:
    return client.invoke(FunctionName="read")


def call_sqs(client: Any) -> object:
    return client.list_queues()


def call_bedrock(client: Any) -> object:
    answer = client.converse_stream(
        modelId="any", messages=[{"role": "user", "content": [{"text": "How many?"}]}]
    )
    return list(answer["stream"])


CALLS: dict[str, Callable[[Any], object]] = {
    "dynamodb": call_dynamodb,
    "s3": call_s3,
    "lambda": call_lambda,
    "sqs": call_sqs,
    "bedrock-runtime": call_bedrock,
}


@pytest.mark.parametrize(
    ("service", "answer", "expected"),
    [
        ("dynamodb", as_json("ThrottlingException", 400), ("throttled", None)),
        ("dynamodb", as_json("ProvisionedThroughputExceededException", 400), ("throttled", None)),
        ("dynamodb", as_json("RequestLimitExceeded", 400), ("throttled", None)),
        ("dynamodb", as_json("ThrottlingException", 400, **{"Retry-After": "3"}), ("throttled", 3.0)),
        ("dynamodb", as_json("ResourceNotFoundException", 400), ("permanent", None)),
        ("dynamodb", as_json("ValidationException", 400), ("permanent", None)),
        ("dynamodb", as_json("InternalServerError", 500), ("error", None)),
        ("sqs", as_json("RequestThrottled", 403), ("throttled", None)),
        ("lambda", as_json("TooManyRequestsException", 429, **{"Retry-After": "3"}), ("throttled", 3.0)),
        ("lambda", as_json("EC2ThrottledException", 502), ("throttled", None)),
        ("s3", as_xml("SlowDown", 503), ("throttled", None)),
        ("s3", as_xml("SlowDown", 503, **{"Retry-After": "3"}), ("throttled", 3.0)),
        ("s3", as_xml("RequestTimeout", 400), ("error", None)),
        ("s3", as_xml("InternalError", 500), ("error", None)),
        ("s3", as_xml("NoSuchKey", 404), ("permanent", None)),
        ("bedrock-runtime", as_json("ThrottlingException", 429), ("throttled", None)),
        ("bedrock-runtime", as_stream("throttlingException"), ("throttled", None)),
        ("bedrock-runtime", as_stream("internalServerException"), ("error", None)),
        ("bedrock-runtime", as_json("ValidationException", 400), ("permanent", None)),
    ],
)
def test_aws_is_understood_by_its_code_before_its_status(
    far_side: FarSide, service: str, answer: Answer, expected: tuple[str, float | None]
) -> None:
    far_side.answers.append(answer)
    client = aws(service, far_side.url)
    try:
        error = raised(lambda: CALLS[service](client))
    finally:
        client.close()
    failure = classify(error)
    assert (failure.kind, failure.after) == expected
    assert [call.status for call in far_side.calls] == [answer.status]


def as_events(*messages: tuple[str, object]) -> Answer:
    """Events sent by the server, as LLMs answer word by word."""
    text = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in messages)
    return Answer(200, {}, text.encode(), "text/event-stream")


def stream_of_anthropic(url: str) -> None:
    import anthropic

    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        list(client.messages.create(model="any", max_tokens=1, messages=ASKED, stream=True))


def stream_of_openai(url: str) -> None:
    import openai

    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        list(client.chat.completions.create(model="any", messages=ASKED, stream=True))


@pytest.mark.parametrize(
    ("said", "kind"),
    [("rate_limit_error", "throttled"), ("overloaded_error", "error"), ("api_error", "error")],
)
def test_a_stream_of_anthropic_that_ends_with_an_error_is_understood(
    far_side: FarSide, said: str, kind: str
) -> None:
    error = {"type": "error", "error": {"type": said, "message": "no"}}
    far_side.answers.append(as_events(("ping", {"type": "ping"}), ("error", error)))
    assert classify(raised(lambda: stream_of_anthropic(far_side.url))).kind == kind


@pytest.mark.parametrize(("said", "kind"), [("rate_limit_exceeded", "throttled"), ("server_error", "error")])
def test_a_stream_of_openai_that_ends_with_an_error_is_understood(
    far_side: FarSide, said: str, kind: str
) -> None:
    far_side.answers.append(
        as_events(("error", {"error": {"message": "no", "type": "tokens", "code": said}}))
    )
    assert classify(raised(lambda: stream_of_openai(far_side.url))).kind == kind
