"""Secrets do not reach people's eyes; what is no secret does."""

from typing import Any

import pytest

from runcue import mask

CANARY = "s3cr3t-c4n4ry"


@pytest.mark.parametrize(
    "name",
    ["passcode", "otpCode", "authHeader", "OPENAI_KEY", "tokens_secret", "password", "pass",
     "db_pass", "PASSWORD", "db_passwd", "userPassword", "secret", "client_secret", "token",
     "accessToken", "api_key", "apiKey", "API-KEY", "x-api-key", "authorization",
     "Authorization", "cookie", "Set-Cookie",
     "session_id", "private_key", "credentials", "ssh_key", "auth", "jwt", "signature", "passphrase", "dsn"],
)  # fmt: skip
def test_what_stands_under_such_a_name_is_hidden(name: str) -> None:
    assert mask({name: CANARY}) == {name: "***"}
    assert mask({"deep": [{"er": {name: {"all": CANARY}}}]}) == {"deep": [{"er": {name: "***"}}]}
    assert mask({name: None}) == {name: None}


@pytest.mark.parametrize(
    "name",
    ["tokens", "max_tokens", "input_tokens", "tokens_used", "token_count", "author", "key", "keys", "monkey", "page",
     "compass", "passed", "bypass", "pinned", "option", "surpassed"],
)  # fmt: skip
def test_what_only_looks_like_one_is_shown(name: str) -> None:
    assert mask({name: 1000}) == {name: 1000}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"postgresql://app:{CANARY}@db.example/queue", "postgresql://app:***@db.example/queue"),
        (f"cannot connect to redis://:{CANARY}@h:1", "cannot connect to redis://:***@h:1"),
        (f"curl -H 'Authorization: Bearer {CANARY}' x", "curl -H 'Authorization: Bearer ***' x"),
        (f"https://h/x?api_key={CANARY}&page=2", "https://h/x?api_key=***&page=2"),
        (f'{{"password": "{CANARY}", "a": 1}}', '{"password": "***", "a": 1}'),
        (f"PGPASSWORD={CANARY} psql", "PGPASSWORD=*** psql"),
        (f"SECRET_KEY={CANARY}", "SECRET_KEY=***"),
        (f"client_secret_key: {CANARY}", "client_secret_key: ***"),
        (f"pwd={CANARY};x", "pwd=***"),
        (f"mysql --password {CANARY} -u me", "mysql --password *** -u me"),
        (f"cli --api-key={CANARY} run", "cli --api-key=*** run"),
        (f"got 401 for Bearer {CANARY}", "got 401 for Bearer ***"),
        (f"Set-Cookie: id={CANARY}; Path=/", "Set-Cookie: ***"),
        (f"https://{CANARY}-and-more@example.org/x", "https://***@example.org/x"),
        (f"ftp://me:a/{CANARY}@h/x", "ftp://me:***@h/x"),
        (f'password="correct {CANARY} horse" y', 'password="***" y'),
        (f"password='{CANARY}\\' {CANARY}' y", "password='***' y"),
        (f'password="{CANARY}', "password=***"),
        (f"password=a,{CANARY} y", "password=*** y"),
        (f"postgres://u:a@{CANARY}@h", "postgres://u:***@h"),
        (f"https://{CANARY}@example.org/x", "https://***@example.org/x"),
        (f'{{\\"password\\": \\"{CANARY}\\"}}', '{\\"password\\": \\"***\\"}'),
        (f"('authorization', 'Bearer {CANARY}')", "('authorization', '***')"),
        (f"curl -u user:{CANARY} x", "curl -u user:*** x"),
        (f"https://h/x?a=1&sig={CANARY}&b=2", "https://h/x?a=1&sig=***&b=2"),
        (f"""x --api-key 'it'"'"'s {CANARY}' y""", "x --api-key '***' y"),
        ("max_tokens=1000 tokens: 5 --max-tokens 100", "max_tokens=1000 tokens: 5 --max-tokens 100"),
        ("git@github.com https://git@github.com/x", "git@github.com https://git@github.com/x"),
        ("https://example.org:8080/a@b", "https://example.org:8080/a@b"),
        ("12:30 mail to a@b", "12:30 mail to a@b"),
        ("nothing of the kind", "nothing of the kind"),
    ],
)
def test_secrets_inside_texts_are_hidden(text: str, shown: str) -> None:
    assert mask(text) == shown
    assert mask([{"error": text}]) == [{"error": shown}]


def test_headers_environments_and_small_numbers_are_hidden_too() -> None:
    assert mask([["Authorization", CANARY], ["Accept", "x"]]) == [["Authorization", "***"], ["Accept", "x"]]
    assert mask({"env": {"HOME": "/root", "X": CANARY}}) == {"env": {"HOME": "***", "X": "***"}}
    assert mask({"pin": 1, "token": True, "secret": ""}) == {"pin": "***", "token": True, "secret": ""}
    assert mask({"env": "production", "sort_key": "a"}) == {"env": "production", "sort_key": "a"}


def test_what_is_given_stays_as_it_was() -> None:
    given: dict[str, Any] = {"password": CANARY, "list": [{"token": CANARY}]}
    mask(given)
    assert given == {"password": CANARY, "list": [{"token": CANARY}]}


def test_depth_and_length_are_no_way_to_hang_or_break_it() -> None:
    deep: Any = CANARY
    for _ in range(5000):
        deep = [deep]
    assert CANARY not in repr(mask([[[]]])) + str(mask(deep))[:100]
    for long in ("a" * 200_000 + "://" + "b:" * 100_000, "://x:" * 20_000, "--" * 50_000, "token" * 20_000):
        assert mask(long) == long
