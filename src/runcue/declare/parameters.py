"""How a handler is called: with its unit, as `def f(work)`, or with params by name, as `def f(page, style="short")`.

Rules:
- A handler whose only parameter is `work`, or is annotated as a unit, is called with the unit, and its params are
  whatever JSON was submitted.
- Any other gets its params by name, decoded by their annotations; `**rest` takes what is left. A parameter called
  `work` or annotated as a unit gets the unit, one annotated with the type of a resource gets that resource.
- Params are checked when they are submitted: each one there, known, and of its annotated type, once it was stored as
  JSON. They are checked again at the start: an older release may have submitted them.
"""

from __future__ import annotations

import inspect
import pickle
import sys
from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import FunctionType
from typing import Any, Final, Never, NoReturn, NotRequired, TypedDict, Unpack, get_origin, get_type_hints

import msgspec

from runcue.core.model import encoding, parse
from runcue.core.model.encoding import Codec, Unsupported
from runcue.core.model.outputs import WithOutputs, outputs_in
from runcue.core.model.record import Work
from runcue.engine.handler import origin, spoken, unwrapped
from runcue.engine.running import RunningWork, resources_of
from runcue.errors import CLOSE, ConfigError, InvalidParams, Permanent, nearest, quoted

UNIT: Final = "work"
UNITS: Final = (Work, RunningWork)
"""The annotations of a parameter that gets the unit."""
ANYTHING: Final = (Any, object, inspect.Parameter.empty)
NOTHING: Final = (Any, object, None, type(None), NoReturn, Never)
"""The return annotations that do not say what a result is."""
NAMED: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)
"""The kinds of parameters that have a name to be filled by."""


class Parameters:
    """The parameters of one handler that are filled by name."""

    def __init__(
        self,
        task: str,
        parameters: list[inspect.Parameter],
        hints: Mapping[str, Any],
        resources: Collection[Any],
    ) -> None:
        self.task = task
        self.hints = {one.name: hints[one.name] for one in parameters if one.name in hints}
        self.units: list[str] = []
        """The parameters that get the unit."""
        self.resources: dict[str, Any] = {}
        """The parameters that get a resource, with its type."""
        self.codecs: dict[str, Codec] = {}
        self.defaults: dict[str, Any] = {}
        self._positional_only: list[str] = []
        self._by_place: list[str] = []
        """The params that a call may give without their names."""
        self._rest: str | None = None
        """The parameter that takes the rest."""
        self._rest_codec: Codec | None = None
        """The codec of each of the rest, where an annotation says what they are."""
        for one in parameters:
            if one.kind is one.VAR_KEYWORD:
                self._rest = one.name
                hint = hints.get(one.name, Any)
                if hint not in ANYTHING and get_origin(hint) is not Unpack:
                    self._rest_codec = self._codec(one.name, hint)
            elif one.kind in NAMED:
                self._take(one, hints.get(one.name, Any), resources)
        self.names = self.codecs.keys()
        self._handed_in = frozenset((*self.resources, *self.units))
        self._required = [name for name in self.names if name not in self.defaults]
        self._loose = frozenset(
            name for name, codec in self.codecs.items() if encoding.holds_anything(codec.annotation)
        )
        self._with_sets = [
            name for name, codec in self.codecs.items() if encoding.holds_sets(codec.annotation)
        ]
        rest = self._rest_codec
        self._rest_has_sets = rest is not None and encoding.holds_sets(rest.annotation)
        shown = {name: _default(value) for name, value in self.defaults.items()}
        self.stored_defaults = {name: given["default"] for name, given in shown.items() if given}
        fields = {name: codec.annotation for name, codec in self.codecs.items()}
        optional = {
            name: NotRequired[fields[name]] if name in self.defaults else fields[name] for name in fields
        }
        self._whole = Codec(TypedDict(task, optional))  # type: ignore[operator]
        strict = [
            (name, kind, None) if name in self.defaults else (name, kind) for name, kind in fields.items()
        ]
        self._check = encoding.checker(task, strict, takes_rest=self._rest is not None)
        """Raises for JSON that is not all required params, of their types, and no others."""

    def _take(self, one: inspect.Parameter, hint: Any, resources: Collection[Any]) -> None:
        bare = encoding.bare(hint)
        if one.name == UNIT or bare in UNITS:
            self.units.append(one.name)
            return
        if any(bare is kind for kind in resources):
            self.resources[one.name] = bare
            return
        self.codecs[one.name] = self._codec(one.name, Any if hint in ANYTHING else hint)
        if one.default is not one.empty:
            self.defaults[one.name] = one.default
        if one.kind is not one.KEYWORD_ONLY:
            self._by_place.append(one.name)
        if one.kind is one.POSITIONAL_ONLY:
            self._positional_only.append(one.name)

    def refuses(self, name: str) -> bool:
        """True for the name of a param that no submission can have."""
        return name not in self.names and self._rest is None

    def _codec(self, name: str, hint: Any) -> Codec:
        try:
            return Codec(hint)
        except Unsupported as error:
            raise ConfigError(
                f"Parameter {quoted(name)} of task {quoted(self.task)} cannot be submitted: {error}, or declare "
                "what makes it with @cue.resource before the task."
            ) from None

    # submitting ---------------------------------------------------------------------------------------

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The params of a call with these arguments."""
        if not args:
            return kwargs
        names = self._by_place
        if len(args) > len(names) or not kwargs.keys().isdisjoint(names[: len(args)]):
            raise InvalidParams(
                "params", f"do not fit: task {quoted(self.task)} takes {self._spoken_names()}."
            )
        return dict(zip(names, args, strict=False)) | kwargs

    def encode(self, params: Any, limit: int) -> bytes:
        """The params of a submission as JSON; refuses those that the handler could not be called with."""
        if params is None:
            params = {}
        if type(params) is not dict:
            params = parse.params_dict(params)
        try:
            if self._with_sets or self._rest_has_sets:
                params = self._with_sorted_sets(params)
            data = encoding.encode(params)
            self._check(data)
            if self._rest_codec is not None:
                for name in params.keys() - self.names:
                    self._rest_codec.check(encoding.encode(params[name]))
        except Exception as error:  # noqa: BLE001 (whatever a value raises, `_explained` says which one it is)
            data = self._explained(params, error)
        if self._rest is not None:
            self._refuse_unknown(params)
        is_rest_loose = self._rest is not None and self._rest_codec is None
        if self._loose or is_rest_loose:
            # What no annotation tells how to restore must be plain JSON, as in params that are not annotated.
            loose = {
                name: value
                for name, value in params.items()
                if name in self._loose or (is_rest_loose and name not in self.names)
            }
            if type(parse.encode_params(loose, limit)) is WithOutputs:
                data = WithOutputs(data, params)
        parse.check_size(data, limit)
        return data

    def canonical(self, data: bytes) -> dict[str, Any]:
        """Stored params and the defaults of others, as JSON that is equal where the handler gets equal values."""
        params = self.stored_defaults | parse.decode_params(data)
        try:
            values = params | self._whole.decode(params)
        except msgspec.ValidationError:  # they hold outputs, or a default is of another type
            return params
        return parse.decode_params(encoding.encode(self._with_sorted_sets(values)))

    def _with_sorted_sets(self, params: dict[str, Any]) -> dict[str, Any]:
        return {
            name: encoding.with_sorted_sets(value)
            if name in self._with_sets or (self._rest_has_sets and name not in self.names)
            else value
            for name, value in params.items()
        }

    def _explained(self, params: dict[str, Any], error: Exception) -> bytes:
        """The params as JSON, if all that is wrong with them is that they hold outputs; else raise what is wrong."""
        self._refuse_unknown(params)
        self._refuse_missing(params)
        has_outputs = False
        for name, value in params.items():
            codec = self.codecs.get(name, self._rest_codec)
            try:
                data = encoding.encode(value, _path(name))
                is_output = next(outputs_in(value), None) is not None
                if codec is not None and not is_output:
                    codec.check(data)
                has_outputs |= is_output
            except msgspec.ValidationError as refused:
                annotation = None if codec is None else codec.annotation
                where, problem = encoding.problem(refused, annotation)
                raise InvalidParams(_path(name, where), f"{problem}. {self._declared(name)}") from None
            except InvalidParams:
                raise
            except Exception as refused:
                raise InvalidParams(
                    _path(name), f"cannot be encoded as JSON ({refused}). {self._declared(name)}"
                ) from refused
        if not has_outputs:
            raise InvalidParams("params", f"cannot be encoded as JSON: {error}") from error
        return WithOutputs(encoding.encode(params), params)

    def _refuse_unknown(self, given: Collection[str]) -> None:
        for name in given:
            if name in self._handed_in:
                raise InvalidParams(
                    _path(name), f"is not submitted: task {quoted(self.task)} is given it at the start."
                )
            if name not in self.names and self._rest is None:
                advice = nearest(name, self.names, CLOSE)
                raise InvalidParams(
                    _path(name), f"is unknown: task {quoted(self.task)} takes {self._spoken_names()}.{advice}"
                )

    def _refuse_missing(self, given: Collection[str]) -> None:
        name = next((name for name in self._required if name not in given), None)
        if name is None:
            return
        advice = ""
        if len(self.names) == 1:
            advice = " A handler that is to be called with its unit calls that parameter `work`."
        raise InvalidParams(_path(name), f"is missing. {self._declared(name)}{advice}")

    def _declared(self, name: str) -> str:
        if name not in self.codecs:
            hint = "" if self._rest_codec is None else f": {encoding.shown(self._rest_codec.annotation)}"
            return f"Task {quoted(self.task)} declares **{self._rest}{hint}."
        annotation = self.codecs[name].annotation
        shown = name if annotation is Any else f"{name}: {encoding.shown(annotation)}"
        return f"Task {quoted(self.task)} declares {shown}."

    def _spoken_names(self) -> str:
        return ", ".join(self.names) or "no params"

    # calling ------------------------------------------------------------------------------------------

    def arguments(self, work: Any, resources: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """What the handler is called with for a unit; raises Permanent where its params do not fit."""
        params = work.params
        try:
            values = self._whole.decode(params)
        except msgspec.ValidationError as error:
            where, problem = encoding.problem(error)
            raise Permanent(f"{_path(where) if where else 'params'} {problem}. {self._advice()}") from None
        if len(values) < len(params):
            unknown = params.keys() - self.names
            if self._rest is None:
                name = min(unknown)
                raise Permanent(
                    f"{_path(name)} is unknown: task {quoted(self.task)} takes {self._spoken_names()}. "
                    f"{self._advice()}"
                )
            values.update((name, self._one_of_rest(name, params[name])) for name in params if name in unknown)
        for name in self.units:
            values[name] = work
        for name in self.resources:
            values[name] = resources[self.resources[name]]
        if not self._positional_only:
            return [], values
        given = self.defaults | values
        by_place = [given[name] for name in self._positional_only if name in given]
        return by_place, {name: value for name, value in values.items() if name not in self._positional_only}

    def _one_of_rest(self, name: str, value: Any) -> Any:
        if self._rest_codec is None:
            return value
        try:
            return self._rest_codec.decode(value)
        except msgspec.ValidationError as error:
            where, problem = encoding.problem(error)
            raise Permanent(f"{_path(name, where)} {problem}. {self._advice()}") from None

    def _advice(self) -> str:
        return "The unit was submitted for another version of its task; edit it, or submit it anew."

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the params."""
        schema = self._whole.schema()
        definitions = schema.pop("$defs")
        whole: dict[str, Any] = definitions.pop(schema["$ref"].rpartition("/")[2])
        properties = {name: whole["properties"][name] for name in self.names}
        for name, value in self.stored_defaults.items():
            properties[name] = {**properties[name], "default": value}
        return {
            "title": self.task,
            "type": "object",
            "properties": properties,
            "required": self._required,
            "additionalProperties": self._rest is not None,
        } | ({"$defs": definitions} if definitions else {})


class Call:
    """Calls a handler with the params of a unit, by name. It can be sent to another process as its handler can."""

    def __init__(self, handler: Callable[..., Any], parameters: Parameters) -> None:
        self.handler = handler
        self.parameters = parameters

    def __call__(self, work: Any) -> Any:
        args, kwargs = self.parameters.arguments(work, resources_of(work))
        return self.handler(*args, **kwargs)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        hints = self.parameters.hints if _leaves_names_behind(self.handler) else None
        try:
            pickle.dumps(hints)
        except Exception:  # noqa: BLE001 (annotations may hold anything; most handlers are found without them)
            hints = None
        return call_of, (self.parameters.task, self.handler, hints)


def call_of(task: str, handler: Callable[..., Any], hints: dict[str, Any] | None) -> Callable[[Any], Any]:
    """What an executor calls with a unit."""
    parameters = parameters_of(task, handler, (), hints)
    return handler if parameters is None else Call(handler, parameters)


def parameters_of(
    task: str, handler: Callable[..., Any], resources: Collection[Any], hints: dict[str, Any] | None = None
) -> Parameters | None:
    """The parameters of a handler that are filled by name; None for one that is called with its unit."""
    try:
        found = list(inspect.signature(handler).parameters.values())
    except Exception:  # noqa: BLE001 (some built-ins have none, and anything may claim to have one)
        return None
    if isinstance(handler, partial):
        found = [one for one in found if one.name not in handler.keywords]
    if found and found[0].name == "self":
        raise ConfigError(
            f"{spoken(handler)}, the handler of task {quoted(task)}, is a method: register that of an object."
        )
    by_place = [one for one in found if one.kind in NAMED and one.kind is not one.KEYWORD_ONLY]
    is_open = any(one.kind is one.VAR_POSITIONAL for one in found)
    is_alone = len(found) == 1 and len(by_place) == 1
    if (is_open and not by_place) or (is_alone and _is_unit(by_place[0].name)):
        return None
    if hints is None:
        hints = hints_of(task, handler)
    if is_alone and hints.get(by_place[0].name) in UNITS:
        return None
    return Parameters(task, found, hints, resources)


def returned(task: str, handler: Callable[..., Any], *, is_lenient: bool) -> Any:
    """The return annotation of a handler; Any where there is none, or none that says anything."""
    try:
        annotation = hints_of(task, handler).get("return", Any)
    except ConfigError:
        if is_lenient:
            return Any
        raise
    return Any if annotation in NOTHING else annotation


def hints_of(task: str, handler: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a handler; also those that name what is local to the function that defines it."""
    inner: Any = inspect.unwrap(unwrapped(handler))  # type: ignore[arg-type]
    if not inspect.isroutine(inner):
        inner = type(inner).__call__
    try:
        return get_type_hints(inner, include_extras=True)
    except Exception:  # noqa: BLE001 (tried again with more names)
        try:
            return get_type_hints(inner, localns=_names_in_sight(), include_extras=True)
        except Exception as error:
            raise ConfigError(
                f"The annotations of {spoken(handler)}, the handler of task {quoted(task)}, cannot be read: "
                f"{error}. Name types that are imported, or defined before it."
            ) from error


def _names_in_sight() -> dict[str, Any]:
    """The local names of the code that registers a task."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("runcue."):
        frame = frame.f_back
    return dict(frame.f_locals)


def _default(value: Any) -> dict[str, Any]:
    """A default as a schema says it; nothing of one without a JSON form, which is never stored."""
    try:
        return {"default": encoding.plain(encoding.with_sorted_sets(value))}
    except Exception:  # noqa: BLE001 (it may be of any kind)
        return {}


def _leaves_names_behind(handler: Callable[..., Any]) -> bool:
    """True for a function that may travel by value, without what the text of its annotations names."""
    inner = unwrapped(handler)
    if not isinstance(inner, FunctionType) or (origin(inner) or ("__main__",))[0] != "__main__":
        return False
    return any(isinstance(annotation, str) for annotation in inner.__annotations__.values())


def _is_unit(name: str) -> bool:
    """True for the name of a parameter that gets the unit, and for one that nobody reads."""
    return name == UNIT or name.startswith("_")


def _path(name: str, inside: str = "") -> str:
    between = "." if inside and not inside.startswith("[") else ""
    return f"params.{name}{between}{inside}"
