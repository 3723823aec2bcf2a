"""Options in groups: a command takes dataclasses, typer sees their fields as one flat list of options."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints


def spread(
    command: Callable[..., None], *, first: Callable[[Mapping[str, Any]], None] | None = None
) -> Callable[..., None]:
    """Return a command that typer can read, for one whose parameters are dataclasses of typer options.

    Each field of a dataclass becomes an option with the field's annotation and default; other parameters stay.

    Args:
        command: The command.
        first: What to do with the dataclasses before the command begins.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[type[Any], list[str]]] = {}
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        if not dataclasses.is_dataclass(hint):
            parameters.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        own = get_type_hints(hint, include_extras=True)
        fields = dataclasses.fields(hint)
        groups[parameter.name] = hint, [field.name for field in fields]  # type: ignore[assignment]
        for field in fields:
            default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            parameters.append(
                inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=own[field.name]
                )
            )

    def flat(**values: Any) -> None:
        gathered = {
            name: group(**{field: values.pop(field) for field in fields}) for name, (group, fields) in groups.items()
        }
        if first is not None:
            first(gathered)
        command(**gathered, **values)

    flat.__name__, flat.__doc__ = command.__name__, command.__doc__
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat
