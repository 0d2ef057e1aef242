"""Records: frozen results with named fields, whose JSON is a file.

Every file says ``"format": 1``; another number is refused in a sentence.
"""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from arc_data.atomic import write_atomically

Own = TypeVar("Own", bound="Record")
FORMAT = 1
SEAL = "sha256"


def check_format(found: Any) -> None:
    """Refuse a file of another format.

    Raises:
        ValueError: naming the format that is read.
    """
    if found != FORMAT:
        given = "no format" if found is None else f"format {found!r}"
        raise ValueError(f"has {given}; this version reads format {FORMAT}")


class Record(BaseModel):
    """Base of what is kept in a file: frozen, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    is_sealed: ClassVar[bool] = False  # whether the file has the SHA-256 of its content

    def to_values(self) -> dict[str, Any]:
        """Return the content of the file as plain containers: format, then the fields."""
        return {"format": FORMAT, **self.model_dump(mode="json")}

    def to_json(self) -> str:
        """Return the content of the file."""
        return json.dumps(self.to_values(), indent=1) + "\n"

    def save(self, path: Path) -> None:
        """Write the file."""
        write_atomically(path, self.to_json())

    def __str__(self) -> str:
        """Return what ``repr`` does; pydantic's own text lists every field."""
        return repr(self)

    @classmethod
    def from_json(cls: type[Own], text: str, where: str) -> Own:
        """Read the content of a file.

        Raises:
            ValueError: naming ``where``, and the field that is wrong.
        """
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: not readable JSON ({error})") from error
        if not isinstance(values, dict):
            raise ValueError(f"{where}: expected an object, got a {type(values).__name__}")
        try:
            seal = values.pop(SEAL, None) if cls.is_sealed else None
            expected = _seal(values) if cls.is_sealed else None
            check_format(values.pop("format", None))
            found = cls.model_validate_json(json.dumps(values))
            if seal != expected:
                raise ValueError("damaged, it is not what was written")
            return found
        except ValidationError as error:
            problem = error.errors()[0]
            field = ".".join(map(str, problem["loc"])) or "the object"
            raise ValueError(f"{where}: {field}: {problem['msg'].lower()}") from error
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error

    @classmethod
    def load(cls: type[Own], path: Path) -> Own:
        """Read a file.

        Raises:
            ValueError: naming the file, if it can't be read or is not one of these.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: not readable ({error})") from error
        return cls.from_json(text, str(path))


class SealedRecord(Record):
    """A record whose file has the SHA-256 of the rest, so that a change of it is damage."""

    is_sealed = True

    def to_values(self) -> dict[str, Any]:
        """Return the content of the file as plain containers: format, the fields, the seal."""
        values = super().to_values()
        return {**values, SEAL: _seal(values)}


def _seal(values: dict[str, Any]) -> str:
    as_read = json.loads(json.dumps(values))  # keys are text in a file
    return sha256(json.dumps(as_read, sort_keys=True).encode()).hexdigest()
