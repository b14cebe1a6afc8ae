"""Which safetensors files of a folder make up the model. Knows the folder's index; opens no tensor."""

from __future__ import annotations

from pathlib import Path

from ionrouter.engine.model_folder import read_file
from ionrouter.engine.regular_file import require_regular
from ionrouter.errors import ConfigError

INDEX = "model.safetensors.index.json"


def shards_of(folder: Path) -> list[Path]:
    """List the files that the index names, or without an index all there are.

    Folders may hold the same weights a second time under other names; the index says which count. Raises
    ConfigError naming files that are missing and a tensor of the first, or one that is no file.
    """
    places = read_file(folder / INDEX).get("weight_map")
    if places is None:
        found = sorted(folder.glob("*.safetensors"))
        if not found:
            raise ConfigError("the folder has no *.safetensors file")
        return found
    if not isinstance(places, dict) or not all(_is_name(name) for name in places.values()):
        raise ConfigError(f"{INDEX}: weight_map is not an object of tensors and names of files")
    names = sorted(set(places.values()))
    missing = [name for name in names if not _is_there(folder / name)]
    if missing:
        tensor = next(tensor for tensor, name in places.items() if name == missing[0])
        raise ConfigError(
            f"{', '.join(missing)}: missing; {INDEX} names {len(names)} files and says that tensor "
            f"{tensor!r} is in {missing[0]}"
        )
    return [folder / name for name in names]


def _is_there(path: Path) -> bool:
    try:
        require_regular(path, path.name)
    except FileNotFoundError:
        return False
    return True


def _is_name(value: object) -> bool:
    """Whether it names a file of the folder itself."""
    return isinstance(value, str) and bool(value) and Path(value).name == value
