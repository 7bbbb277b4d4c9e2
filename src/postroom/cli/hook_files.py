"""Finds the files that a tool reads or writes, their versions, and their changed lines.

A version is Git's hash of the content. Content never leaves this machine: the server gets only paths and
versions. The folder `hook-files` in postroom's data folder contains copies of files that were read, so that
changed lines can be shown. The folder also contains, for each session, a list of its files with their
versions. For each tool call that has started, the folder contains the versions of the call's files at that
time. The number and the size of all these files are limited.

The module imports almost nothing.
"""

from __future__ import annotations

import os
import time

from postroom.cli.hook_input import (
    EDIT_TOOLS,
    PATCH_KEYS,
    PATCHED,
    PATH_KEYS,
    join_patch,
    read_session_id,
    read_tool,
    read_working_folder,
    to_sendable_text,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    Values = Mapping[str, object]
    Version = tuple[str, int, int, int]
    """A file's version, and what the file had when it was determined.

    The facts are the time of the last change in nanoseconds, the size, and the time at which the file system
    recorded a change, which a program cannot set.
    """

LARGEST_FILE = 4 * 1024 * 1024
"""The maximum size, in bytes, of a file that is hashed."""
MAX_BYTES = 16 * 1024 * 1024
"""The maximum number of bytes that a hook hashes. Further files are ignored."""
LARGEST_COPY = 256 * 1024
MAX_COPIES, MAX_COPIED = 64, 4 * 1024 * 1024
"""The maximum number and the maximum total size, in bytes, of the copies in each of 16 folders."""
MAX_SESSIONS = 200
MAX_CALLS = 50
"""The maximum number of started tool calls for which the versions of their files are stored."""
MAX_LISTED = 200
MAX_USED = 50
"""The maximum number of files of a tool call."""
MAX_COMMAND_LENGTH = 20_000
MAX_LINES, MAX_LINE_LENGTH = 20, 160
MAX_COMPARISONS = 400
"""The maximum number of lines that are compared one by one.

For a longer change, only the first and the last changed line are determined.
"""
UNSURE = 1_000_000_000
"""The age of a file, in nanoseconds, below which its version is not certain.

A newer file may have changed while it was read, or may still change without a new modification time.
"""
RECENT = 60 * 1_000_000_000

WHOLE_TOOLS = ("Write", "write_file", "create", "write", "Delete", "delete_file")
READ_TOOLS = ("Read", "read_file", "read_many_files", "read_files", "view", "read")
_CONTENTS = ("content", "contents", "file_text")
SHELL_TOOLS = (
    *("Bash", "bash", "run_shell_command", "Shell", "shell", "run_terminal_cmd", "exec_command"),
    *("run_commands", "execute_command", "powershell"),
)
_USED = ("read", "glance", "whole", "part", "shell")
_READERS = ("cat", "head", "tail", "sed", "nl", "less", "more", "bat", "awk", "type")
_WRITERS = ("tee", "cp", "mv", "rm", "truncate", "install", "dd", "patch", "ln", "unlink")
_SHOWERS = ("cat", "nl", "less", "more", "bat", "type", "tee")
"""The commands that show all lines of their input."""
_ALL = 1 << 31
_PREFIXES = ("sudo", "env", "time", "command", "nohup", "exec")
_IN_PLACE = ("-i", "-pi", "-ni", "--in-place", "inplace")
_ENDS = "\n;|&()`"
_INNER = str.maketrans(dict.fromkeys("'\"()=,", " "))
"""Removes the characters around the name of a file in a word, as in a script or an option with a value."""


class Look:
    """Examines the files that a client's tool call uses."""

    def __init__(self, client: str, kind: str, sent: Values, data_dir: str) -> None:
        self._folder = os.path.join(data_dir, "hook-files")  # noqa: PTH118 - no pathlib here
        self._cwd = read_working_folder(sent)
        self._now = time.time_ns()
        self._is_used = kind != "edit"
        tool, arguments = read_tool(sent)
        self._is_shell = tool in SHELL_TOOLS
        texts = (to_sendable_text(arguments.get(key)) for key in _CONTENTS if tool in WHOLE_TOOLS)
        self._content = next(filter(None, texts), "").encode()
        self._left = MAX_BYTES
        session = read_session_id(sent)
        self._list = self._path("sessions", _hash(f"{client}/{session}".encode())) if session else ""
        self._known = _versions(self._list)
        self._seen: dict[str, Version] = {}
        self.trouble = ""
        """Why the data folder cannot be written, in the words of the operating system, or "" if it can be."""
        self.reports: list[list[str]] = []
        """The path, the version and the use of each file to report to the server."""
        uses: dict[str, str] = {}
        for path, how in _uses(client, sent, self._cwd) if kind != "prompt" else ():
            if _weight(how) >= _weight(uses.get(path, "named")):
                uses[path] = how
        call = to_sendable_text(sent.get("tool_use_id")) or repr(sorted(uses.items()))
        self._call = self._path("calls", _hash(f"{self._list}/{call}".encode())) if session and uses else ""
        self._began = _versions(self._call) if self._is_used else {}
        for path, how in [*uses.items()][:MAX_USED]:
            if "\n" not in path and to_sendable_text(path):
                self._after(path, how) if self._is_used else self._before(path, how)
        if self._is_used:
            for path, old_version in self._known.items():  # files written since they were added to the list
                version = None if path in self._seen else self._version(path, old_version)
                if version is not None and version != old_version:
                    self.reports.append([path, version[0], "found"])  # even after a change was reverted
                    self._seen[path] = version
            if self._began:
                _remove(self._call)
            try:
                rows = [row.split(" ", 2) for row in _rows(f"{self._list}.late")] if self._list else []
            except OSError:
                rows = []
            unsent = []
            for blob, how, path in rows:
                if (self._version(path) or ("",))[0] == blob:
                    unsent.append([path, blob, how])
                elif how == "read":
                    unsent.append([path, blob, "late"])
            self.reports = [*unsent, *self.reports]
        elif self._call and self._seen:
            self._put(self._call, _as_rows(self._seen.items()))
            _prune(self._path("calls"), MAX_CALLS, MAX_COPIED)

    def _path(self, *parts: str) -> str:
        return os.path.join(self._folder, *parts)  # noqa: PTH118 - no pathlib here

    def _before(self, path: str, how: str) -> None:
        is_read = _weight(how) <= _weight("read")
        version = self._version(path, self._known.get(path) if is_read else None)
        if version is None or (version[0] == "gone" and how != "whole"):
            return
        self._seen[path] = version
        if how == "named" or not is_read:
            self.reports.append([path, version[0], how])

    def _after(self, path: str, how: str) -> None:
        began = self._began.get(path)
        before = began or self._known.get(path)
        version = self._version(path)
        if version is None:
            return
        is_same = before is not None and before[0] == version[0]
        age = self._now - version[1]
        if how.startswith("lines "):
            how = "read" if version[0] == "huge" or _count_lines(path) <= _weight(how) else "glance"
        if how in ("read", "glance") and began is not None and not is_same:
            # The tool may have read the file before the file changed, so only the older version counts as
            # read.
            self.reports.append([path, began[0], how])
            how, is_used = "found", True
        elif how == "read":
            # If no hook ran before the command, nothing shows whether the file changed while the command ran.
            unsure = RECENT if self._is_shell and began is None else UNSURE
            how = "read" if is_same or age > unsure else "unsure"
            is_used = version[0] != "gone"
        elif how == "glance":
            is_used = version[0] != "gone"
        elif before is None:  # the file did not exist before, or no hook ran before
            is_used = how in ("whole", "part") or (how == "shell" and version[0] != "gone" and age < RECENT)
        else:
            is_used, how = not is_same or version[0] == "huge", "shell" if how == "named" else how
        if how == "whole" and is_used and (written := self._find_replaced_version(path, version[0])):
            self.reports.append([path, written, how])
            how = "found"
        self._seen[path] = version
        if is_used:
            self.reports.append([path, version[0], how])

    def _find_replaced_version(self, path: str, blob: str) -> str:
        if not self._content or len(self._content) > LARGEST_FILE or blob == "huge":
            return ""
        written = _hash(b"blob %d\0" % len(self._content) + self._content)
        try:
            if blob == written or _trim(_content(path)) == _trim(self._content):
                return ""
        except OSError:  # the file has been deleted
            pass
        self._copy(written, self._content)
        return written

    def warning(self) -> str:
        """Return a warning if the data folder is not writable, or "" if the folder is writable."""
        if not self.trouble:
            return ""
        return (
            f"postroom: {self._folder} cannot be written ({self.trouble}). The server still checks "
            "writes, but changed lines are not shown, and changes that no hook reported may be noticed "
            "late. Free space on that disk, or set POSTROOM_DATA_DIR to another folder."
        )

    def _put(self, path: str, content: bytes) -> None:
        try:
            _put(path, content)
        except OSError as error:
            self.trouble = self.trouble or os.strerror(error.errno or 0)

    def _version(self, path: str, known: Version | None = None) -> Version | None:
        try:
            status = os.stat(path)  # noqa: PTH116 - no pathlib here
            if status.st_mode & 0o170000 != 0o100000:
                return None
            place = (status.st_mtime_ns, status.st_size, status.st_ctime_ns)
            if status.st_size > LARGEST_FILE:
                return ("huge", *place)
            if known is not None and known[1:] == place and self._now - place[0] > UNSURE:
                return known
            if status.st_size > self._left:
                return None
            self._left -= status.st_size
            content = _content(path)
        except (FileNotFoundError, NotADirectoryError):
            return ("gone", 0, 0, 0)
        except OSError:
            return None
        blob = _hash(b"blob %d\0" % len(content) + content)
        self._copy(blob, content)
        return (blob, *place)

    def _copy(self, blob: str, content: bytes) -> None:
        path = self._path(blob[0], blob)
        if len(content) > LARGEST_COPY or b"\0" in content or os.path.exists(path):  # noqa: PTH110
            return
        self._put(path, content)
        _prune(self._path(blob[0]), MAX_COPIES, MAX_COPIED)

    def conclude(self, answer: object) -> str:
        """Return the changed lines that the server has asked for.

        If the server has not accepted the reports, store the reports for the next hook.
        """
        if not isinstance(answer, dict) or "outcome" not in answer:
            last = [
                (path, blob, "read" if how == "late" else how) for path, blob, how in self.reports[-MAX_USED:]
            ]
            rows = [f"{blob} {how} {path}\n" for path, blob, how in last if how in _USED]
            if self._list and self._is_used and rows:
                self._put(f"{self._list}.late", "".join(rows).encode("utf-8", "surrogateescape"))
            return ""
        self.save()
        texts = []
        changed = answer.get("changed")
        for path, was, now in changed if isinstance(changed, list) else ():
            old, new = self._load_copy(was), self._load_copy(now)
            if old is not None and new is not None:
                name = os.path.relpath(path, self._cwd) if path.startswith(self._cwd + os.sep) else path
                texts.append(f"Changed lines of {_plain(name)} (data):\n{_difference(old, new)}")
            elif len(was) == len(now) == 40:
                texts.append(
                    "The changed lines are not shown, because the file is binary, is large, or "
                    "was not stored before the change."
                )
        return "".join(f"\n{text}" for text in dict.fromkeys(texts))

    def save(self) -> None:
        """Store the list of files that the session has used."""
        if not self._list:
            return
        if self._is_used:
            _remove(f"{self._list}.late")
        versions = {
            path: version for path, version in self._known.items() if path not in self._seen
        } | self._seen
        if self._seen:
            self._put(self._list, _as_rows([*versions.items()][-MAX_LISTED:]))
        if self._seen and not self._known:
            _prune(self._path("sessions"), MAX_SESSIONS, MAX_COPIED)

    def _load_copy(self, blob: str) -> bytes | None:
        try:
            content = _content(self._path(blob[:1], blob)) if blob.isalnum() else b""
        except OSError:
            return None
        return content if _hash(b"blob %d\0" % len(content) + content) == blob else None


def _uses(client: str, sent: Values, folder: str) -> Iterator[tuple[str, str]]:
    names: Iterable[tuple[str, str]] = ()
    tool, arguments = read_tool(sent)
    folder = os.path.join(folder, next(filter(None, map(to_sendable_text, map(arguments.get, _FOLDERS))), ""))  # noqa: PTH118
    if tool in SHELL_TOOLS:
        command = join_patch(arguments.get("command", arguments.get("cmd", arguments.get("commands"))))
        if client == "codex" and "*** Begin Patch" in command:
            moved = command.partition("*** Begin")[0].replace("&&", ";").partition("cd ")[2].partition(";")[0]
            folder = os.path.join(folder, moved.strip().strip("'\""))  # noqa: PTH118
            names = _list_patched_files(command)
        else:
            names = _used_by_shell(command[:MAX_COMMAND_LENGTH])
    elif tool in READ_TOOLS:
        names = ((path, _reading_mode(_asked_lines(entry))) for path, entry in _named_in(arguments))
    elif tool in EDIT_TOOLS.get(client, ()):
        is_whole = tool in WHOLE_TOOLS or (tool == "editor" and not arguments.get("old_text"))
        patches = "\n".join(join_patch(arguments.get(key)) for key in PATCH_KEYS)
        named = ((path, "whole" if is_whole else "part") for path, _ in _named_in(arguments))
        names = (*named, *_list_patched_files(patches))
    for path, how in names:
        if path:
            written = os.path.join(folder, os.path.expanduser(path))  # noqa: PTH111, PTH118 - no pathlib here
            yield os.path.realpath(written), how


_FOLDERS = ("workdir", "dir_path", "directory")
_MANY_PATHS = ("files", "paths", "include")


def _named_in(given: Values) -> Iterator[tuple[str, Values]]:
    for key in (*PATH_KEYS, "absolute_path"):
        yield to_sendable_text(given.get(key)), given
    for key in _MANY_PATHS:
        many = given.get(key)
        for item in many if isinstance(many, list) else ():
            inner = item if isinstance(item, dict) else {"path": item}
            yield to_sendable_text(inner.get("path")), inner


def _asked_lines(given: Values) -> int:
    span = given.get("view_range")
    first, last = span if isinstance(span, list) and len(span) == 2 else (None, None)
    starts = (first, *map(given.get, ("offset", "start_line", "startLine")))
    ends = (last, *map(given.get, ("limit", "end_line", "endLine")))
    if given.get("pages") or any(
        number not in (0, 1) for number in map(_number, starts) if number is not None
    ):
        return 0
    return min((number for number in map(_number, ends) if number is not None and number >= 0), default=_ALL)


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, int | float | str) and str(value).lstrip("-").isdecimal() else None


def _reading_mode(lines: int) -> str:
    return "read" if lines >= _ALL else f"lines {lines}"


def _weight(how: str) -> int:
    if how.startswith("lines "):
        return int(how[6:])
    return {"named": -1, "read": _ALL}.get(how, _ALL + 1)


def _count_lines(path: str) -> int:
    try:
        content = _content(path)
    except OSError:
        return 0
    return content.count(b"\n") + (not content.endswith(b"\n"))


def _list_patched_files(patch: str) -> Iterator[tuple[str, str]]:
    for line in patch.splitlines():
        for lead in PATCHED:
            if line.lstrip().startswith(lead):
                how = "part" if "Update" in lead else "whole"
                yield line.lstrip()[len(lead) :].strip(), how


def _used_by_shell(command: str) -> Iterator[tuple[str, str]]:
    folder = ""
    reads, lines = list[str](), _ALL
    """The files that a pipeline reads, and the number of their lines that it shows."""
    for words, targets, is_piped in _simple_commands(command):
        while words and ("=" in words[0] or words[0] in _PREFIXES):
            words = words[1:]
        name, rest = (words[0].rpartition("/")[2], words[1:]) if words else ("", [])
        if name == "cd":
            folder = os.path.join(folder, rest[0] if rest else "~")  # noqa: PTH118 - no pathlib here
            continue
        is_in_place = name in ("sed", "perl", "awk", "ruby") and any(
            option.startswith(_IN_PLACE) for option in rest
        )
        lines = min(lines, _shown_lines(name, rest)) if words else lines
        how = "shell" if is_in_place or name in _WRITERS else "read" if name in _READERS else "named"
        used = [(word, how) for word in rest if not word.startswith("-")]
        marked = [(word, word.translate(_INNER)) for word in rest]
        used += [(part, "named") for word, inner in marked if inner != word for part in inner.split()]
        for path, use in (*used, *((target, "shell") for target in targets)):
            place = os.path.join(folder, path)  # noqa: PTH118 - no pathlib here
            if use == "read":
                reads.append(place)
            else:
                yield place, use
        if not is_piped:
            yield from ((place, _reading_mode(lines)) for place in reads)
            reads, lines = [], _ALL
    for line in command.splitlines():
        if line.startswith(("--- ", "+++ ")):  # a patch for `git apply` or `patch`
            path = line[4:].partition("\t")[0].strip()
            path = path[2:] if path.startswith(("a/", "b/")) else path
            yield os.path.join(folder, path), "shell"  # noqa: PTH118 - no pathlib here


def _shown_lines(name: str, rest: Sequence[str]) -> int:
    if name in ("head", "tail"):
        parts = " ".join(rest).replace("--lines=", "-n").replace("-n ", "-n").split(" ")
        options = [option[1:].removeprefix("n") for option in parts if option.startswith("-")]
        if name == "tail" and "+1" in options:
            return _ALL
        if any(
            option.startswith(("c", "+", "-b", *(f"-{digit}" for digit in "0123456789")))
            for option in options
        ):
            return 0
        return next((min(int(option), _ALL - 1) for option in options if option.isdecimal()), 10)
    if name == "sed":
        script = next((word for word in rest if not word.startswith("-")), "")
        start, _, end = script.removesuffix("p").rpartition(",")
        if "-n" not in rest or not script.endswith("p") or (start or end) not in ("", "1"):
            return 0
        return _ALL if end in ("", "$") else min(int(end), _ALL - 1) if end.isdecimal() else 0
    return _ALL if name in _SHOWERS and not any(word.startswith(("-r", "--line-r")) for word in rest) else 0


def _simple_commands(command: str) -> Iterator[tuple[list[str], list[str], bool]]:
    words, targets, word, quote, is_target, is_escaped = list[str](), list[str](), "", "", False, False
    for char, after in zip(f"{command}\n", f"{command}\n\n"[1:], strict=True):
        if is_escaped or (quote and char != quote):
            word, is_escaped = word + char, False
        elif char == "\\":
            is_escaped = True
        elif quote or char in "'\"":
            quote = "" if quote else char
        elif char not in " \t<>" and char not in _ENDS:
            word += char
        else:
            if word and not (char == ">" and word.isdigit()):
                (targets if is_target else words).append(word)
                is_target = False
            word = ""
            if char == ">":
                is_target = True
            elif char == "&" and is_target:
                is_target = False
            elif char in _ENDS:
                yield words, targets, char == "|" != after
                words, targets, is_target = [], [], False


def _difference(was: bytes, now: bytes) -> str:
    old, new = (text.decode("utf-8", "replace").splitlines() for text in (was, now))
    first = 0
    while first < min(len(old), len(new)) and old[first] == new[first]:
        first += 1
    last = 0
    while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
        last += 1
    old, new = old[first : len(old) - last], new[first : len(new) - last]
    if max(len(old), len(new)) > MAX_COMPARISONS:
        return f"lines {first + 1} to {first + len(old)} are now lines {first + 1} to {first + len(new)}"
    hunks: Sequence[tuple[str, int, int, int, int]] = [("replace", 0, len(old), 0, len(new))]
    if old and new and not len(old) == len(new) == 1:
        from difflib import SequenceMatcher

        hunks = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    rows: list[str] = []
    for tag, old_start, old_end, new_start, new_end in hunks:
        if tag != "equal":
            rows += [
                f"@@ line {first + new_start + 1} @@",
                *(f"-{row}" for row in old[old_start:old_end]),
                *(f"+{row}" for row in new[new_start:new_end]),
            ]
    more = [f"and {len(rows) - MAX_LINES} more lines"] if len(rows) > MAX_LINES else []
    return "\n".join([*(_plain(row[:MAX_LINE_LENGTH]) for row in rows[:MAX_LINES]), *more])


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() or char == "\t" else "?" for char in text)


def _hash(content: bytes) -> str:
    try:
        from _sha1 import sha1  # type: ignore[import-not-found]  # as `hashlib` finds it, without its imports
    except ImportError:
        from hashlib import sha1
    return str(sha1(content, usedforsecurity=False).hexdigest())


def _trim(content: bytes) -> list[bytes]:
    return [line.rstrip() for line in content.removeprefix(b"\xef\xbb\xbf").rstrip().splitlines()]


def _rows(path: str) -> list[str]:
    return _content(path).decode("utf-8", "surrogateescape").split("\n")[:-1]


def _versions(path: str) -> dict[str, Version]:
    versions = {}
    try:
        for row in _rows(path) if path else ():
            blob, time_ns, size, recorded_ns, name = row.split(" ", 4)
            versions[name] = (blob, int(time_ns), int(size), int(recorded_ns))
    except (OSError, ValueError):
        return {}
    return versions


def _as_rows(versions: Iterable[tuple[str, Version]]) -> bytes:
    rows = [f"{' '.join(map(str, version))} {path}\n" for path, version in versions]
    return "".join(rows).encode("utf-8", "surrogateescape")


def _remove(path: str) -> None:
    try:
        os.unlink(path)  # noqa: PTH108 - no pathlib here
    except OSError:
        return


def _content(path: str) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: The file cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        pieces = []
        while piece := os.read(descriptor, 1 << 20):
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def _put(path: str, content: bytes) -> None:
    """Write a private file completely, or leave the existing file unchanged.

    Raises:
        OSError: The file cannot be written, for example because the disk is full.
    """
    draft = f"{path}.{os.getpid()}"
    folder = os.path.dirname(path)  # noqa: PTH120 - no pathlib here
    for directory in (os.path.dirname(folder), folder):  # noqa: PTH120 - `makedirs` gives the mode to the last alone
        os.makedirs(directory, mode=0o700, exist_ok=True)  # noqa: PTH103 - as above
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            while content:  # a disk that becomes full writes a part first, and then fails
                content = content[os.write(descriptor, content) :]
        finally:
            os.close(descriptor)
        os.replace(draft, path)  # noqa: PTH105 - as above
    except OSError:
        _remove(draft)
        raise


def _prune(folder: str, most: int, most_bytes: int) -> None:
    try:
        with os.scandir(folder) as entries:
            files = sorted(
                ((entry.stat().st_mtime_ns, entry.stat().st_size, entry.path) for entry in entries),
                reverse=True,
            )
        size = 0
        for number, (_, length, path) in enumerate(files):
            size += length
            if number >= most or size > most_bytes:
                os.unlink(path)  # noqa: PTH108 - no pathlib here
    except OSError:
        return
