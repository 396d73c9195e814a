"""What makes a unit the duplicate of another (`unique=`), and when it expires: checked when it is submitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec.structs import force_setattr

from runcue.core.model import parse
from runcue.core.model.record import Uniqueness
from runcue.declare.options import choice, flag, or_none, span
from runcue.engine.handler import is_plain_function
from runcue.errors import ConfigError, InvalidOption, InvalidParams, SubmitError, quoted

OnConflict: TypeAlias = Literal["return", "replace", "extend", "raise"]
By: TypeAlias = tuple[str, ...] | Callable[[dict[str, Any]], Any] | None

ON_CONFLICT: Final = get_args(OnConflict)
LONGEST_KEY: Final = 200
"""How long a key may be that is stored as text; of a longer one its hash is stored."""


class Unique(msgspec.Struct, frozen=True, kw_only=True):
    """Which units count as the same, for how long, and what becomes of another one: for `submit(unique=…)`.

    `by` names the params that have to be equal, or is a function of the params; without it all have to be equal.
    """

    by: By = None
    within: float | None = None
    """Seconds after a unit was submitted in which others are its duplicates."""
    while_active: bool = False
    """True when others are duplicates of a unit while that is pending or running."""
    on_conflict: OnConflict = "return"
    at_most: float | None = None
    """For `extend`: seconds after a unit was submitted beyond which it is not postponed."""

    if TYPE_CHECKING:  # it accepts more types than its fields have

        def __init__(
            self,
            *,
            by: str | Sequence[str] | Callable[[dict[str, Any]], Any] | None = None,
            within: float | timedelta | str | None = None,
            while_active: bool = False,
            on_conflict: OnConflict = "return",
            at_most: float | timedelta | str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        choice(self.on_conflict, "on_conflict", ON_CONFLICT)
        flag(self.while_active, "while_active")
        force_setattr(self, "by", _by(self.by))
        force_setattr(self, "within", or_none(span)(self.within, "within"))
        force_setattr(self, "at_most", or_none(span)(self.at_most, "at_most"))
        if (self.within is not None) is self.while_active:
            problem = (
                "within= and while_active=" if self.while_active else "neither within= nor while_active="
            )
            raise ConfigError(
                f"Unique has {problem}. Give one: Unique(within='10m'), Unique(while_active=True)."
            )
        if (self.on_conflict == "extend") is not (self.at_most is not None):
            raise ConfigError(
                "on_conflict='extend' and at_most= go together: at_most='5m' says for how long a unit is postponed "
                "at most, else it might never start."
            )

    def key(self, task: str, params: dict[str, Any], target: str | None) -> str:
        """What a unit has in common with its duplicates, as text."""
        if callable(self.by):
            common: list[Any] = [task, _chosen(self.by, params)]
        elif self.by is not None:
            missing = next((name for name in self.by if name not in params), None)
            if missing is not None:
                raise SubmitError(
                    f"unique= goes by params[{missing!r}], which task {quoted(task)} was not submitted with."
                    f"{parse.nearest(missing, params)}"
                )
            common = [task, {name: params[name] for name in self.by}]
        else:
            common = [task, params] if target is None else [task, params, target]
        data = msgspec.json.encode(common, order="deterministic")
        if len(data) <= LONGEST_KEY:
            return data.decode()
        return f"{task[:LONGEST_KEY]} {blake2b(data, digest_size=24).hexdigest()}"

    def rule(self) -> Uniqueness:
        """What is decided by when another unit has the same key."""
        return Uniqueness(self.within, self.on_conflict, self.at_most)


def read_unique(value: object, delay: float | None, *, has_run_at: bool, has_key: bool) -> Unique:
    """Read what `unique=` was given, and make sure that it goes with what else a unit is submitted with."""
    if not isinstance(value, Unique):
        raise InvalidOption("unique", value, "a runcue.Unique, such as Unique(by=['url'], within='10m')")
    if has_key:
        raise SubmitError(
            "unique= and idempotency_key= are both given. Give one: a key makes a unit the same for as long as it is "
            "kept, unique= for a while."
        )
    if value.at_most is not None:
        if delay is None or has_run_at:
            raise SubmitError(
                "unique= with on_conflict='extend' postpones a unit by its delay: give delay='30s', and no run_at."
            )
        if delay > value.at_most:
            raise SubmitError(
                f"delay={delay:g} s is longer than at_most={value.at_most:g} s of unique=. Raise at_most."
            )
    return value


def read_expires(value: object, delay: float | None) -> float:
    """Read what `expires=` was given: seconds in which a unit has to start."""
    seconds = span(value, "expires")
    if delay is not None and delay >= seconds:
        raise SubmitError(f"expires={seconds:g} s is over before delay={delay:g} s: it would never start.")
    return seconds


def _by(value: object) -> By:
    if value is None or is_plain_function(value):
        return value
    names = (value,) if isinstance(value, str) else value
    if isinstance(names, (list, tuple)) and names and all(isinstance(name, str) for name in names):
        return tuple(dict.fromkeys(names))
    raise InvalidOption("by", value, "names of params, or a plain function of the params")


def _chosen(by: Callable[[dict[str, Any]], Any], params: dict[str, Any]) -> Any:
    """What the application's function makes of the params; it has to be a value that JSON has."""
    try:
        chosen = by(params)
        return parse.decode_params(parse.encode_params({"by": chosen}, parse.LARGEST_INT))["by"]
    except InvalidParams as error:
        raise SubmitError(f"by= of unique= returned what is no JSON: {error}") from error
    except Exception as error:
        raise SubmitError(f"by= of unique= raised {quoted(error)}.") from error
