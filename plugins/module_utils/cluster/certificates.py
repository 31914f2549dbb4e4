# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Keys and certificates that stand in a kubeconfig itself: no file of them is left.

The kubernetes package writes them to files, because Python's ssl reads nothing else, and removes these when Python ends: not in
a process that is killed, nor in a worker of Ansible.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import typing as t

from ..model.fields import Json

#: What writes in the place of the package, by thread: several may connect at once, and others may use the package meanwhile.
_here = threading.local()


@contextlib.contextmanager
def in_memory() -> t.Iterator[list[str]]:
    """Let the package write keys and certificates to memory, and forget them at the end.

    Yields the list of what was written, which grows meanwhile.
    """
    written: list[str] = []
    descriptors: list[int] = []

    def write(content: str | bytes) -> str:
        try:
            descriptor = os.memfd_create("kubeconfig")
            path = f"/proc/self/fd/{descriptor}"
        except AttributeError:  # no Linux
            descriptor, path = tempfile.mkstemp()
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content.encode() if isinstance(content, str) else content)
        descriptors.append(descriptor)
        written.append(path)
        return path

    _divert()
    _here.write = write
    try:
        yield written
    finally:
        _here.write = None
        for descriptor, path in zip(descriptors, written):
            os.close(descriptor)
            with contextlib.suppress(OSError):
                os.remove(path)


def _divert() -> None:
    """Let the package ask, whenever it writes a file, whether this thread has a place for it; without one it writes as ever."""
    from kubernetes.config import kube_config

    plain: t.Any = getattr(kube_config, "_create_temp_file_with_content", None)
    if plain is not None and not isinstance(plain, _Writer):  # a package without it writes files, and goes on
        kube_config._create_temp_file_with_content = _Writer(plain)


class _Writer:
    def __init__(self, plain: t.Callable[..., str]) -> None:
        self._plain = plain

    def __call__(self, content: str | bytes, *arguments: t.Any, **options: t.Any) -> str:
        write: t.Callable[[str | bytes], str] | None = getattr(_here, "write", None)
        if write is None:
            return self._plain(content, *arguments, **options)
        return write(content)


def read_now(options: Json) -> None:
    """Replace the files among the options of a connection pool by what is in them."""
    from urllib3.util import ssl_

    context = ssl_.create_urllib3_context(cert_reqs=options["cert_reqs"])
    authority, certificate, key = (options.pop(option, None) for option in ("ca_certs", "cert_file", "key_file"))
    if authority:
        context.load_verify_locations(authority)
    else:
        context.load_default_certs()
    if certificate:
        context.load_cert_chain(certificate, key)
    options["ssl_context"] = context
