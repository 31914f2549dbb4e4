# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is secret of the options of a connection, so that no result, error or log shows it. Reads no file, and raises nothing."""

from __future__ import annotations

import base64
import os
import re
import typing as t
from urllib.parse import quote, unquote

from ..model.fields import Json, mapping, objects, text

#: Of a user in a kubeconfig, each with all that is in it.
_KEYS = {"token", "password", "client-key-data", "auth-provider"}
#: Inside them, what is no secret: the provider's name.
_NAMES = {"name"}
#: Options that may hold the address of something, with a password in it.
_ADDRESSES = ("host", "proxy")
#: Options that are the path of a file; somebody may give its content.
_FILES = ("client_cert", "client_key", "ca_cert")
#: Variables from which the kubernetes package takes a proxy.
_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
#: Characters of a name in a folder, at most; and of a text that is told as a path though no file is there and nothing says so.
_LONGEST_NAME, _SHORT = 255, 40
#: How a name that is longer may end to be told: as no token, key or base64 does.
_FILE_NAME = re.compile(r"\.(ya?ml|json|conf|config|kubeconfig)$")
#: How an address begins; what comes before :// without being this may be part of a password.
_SCHEME = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*://")
#: What stands in the place of a secret, and of an option as a whole (both are Ansible's).
MASK, HIDDEN = "********", "VALUE_SPECIFIED_IN_NO_LOG_PARAMETER"


def of_options(options: t.Mapping[str, t.Any], environment: t.Mapping[str, str]) -> set[str]:
    """What must not be shown of these options; a path tells nothing. A kubeconfig's other parts are told nowhere (see shown())."""
    found = {str(options[option]) for option in ("api_key", "password") if options.get(option)}
    if options.get("password"):
        found.add(_basic(f"{options.get('username')}:{options['password']}"))
    for pair in filter(None, (text(options.get("proxy_headers"), part) for part in ("proxy_basic_auth", "basic_auth"))):
        found |= {pair, pair.partition(":")[2], _basic(pair)}
    found |= {str(options[option]) for option in _FILES if options.get(option) and not is_path(str(options[option]))}
    addresses = [options.get(option) for option in _ADDRESSES]
    addresses += [environment.get(name) for variable in _PROXIES for name in (variable, variable.lower())]
    for address in addresses:
        found |= _of_address(str(address or ""))
    kubeconfig = options.get("kubeconfig")
    if isinstance(kubeconfig, str) and not is_path(kubeconfig):
        found.add(kubeconfig)  # YAML can break a secret into lines, which would not be found in the text
    found |= of_kubeconfig(_content(kubeconfig))
    return {each for secret in found for each in (secret, secret.strip()) if each}


def of_kubeconfig(kubeconfig: t.Any) -> set[str]:
    """What must not be shown of the content of a kubeconfig."""
    found: set[str] = set()

    def search(value: t.Any, is_secret: bool) -> None:
        if isinstance(value, dict):
            for key, each in value.items():
                search(each, (is_secret or key in _KEYS) and key not in _NAMES)
        elif isinstance(value, list):
            for each in value:
                search(each, is_secret)
        elif is_secret and isinstance(value, str) and value:
            found.add(value)

    search(kubeconfig, False)
    for each in objects(kubeconfig, "clusters"):
        for key in ("server", "proxy-url"):
            found |= _of_address(text(mapping(each, "cluster"), key))
    return found


def of_plugins(kubeconfig: t.Any) -> set[str]:
    """The arguments and variables of the credential plugins of a kubeconfig.

    Most are no secrets but words such as a profile's name, so that they are hidden where a plugin may have told them, and not
    wherever they stand in a result.
    """
    plugins = [mapping(each, "user", "exec") for each in objects(kubeconfig, "users")]
    arguments = [str(each) for plugin in plugins for each in plugin.get("args") or () if isinstance(plugin.get("args"), list)]
    values = [each.partition("=")[2] if each.startswith("-") else each for each in arguments]
    values += [text(each, "value") for plugin in plugins for each in objects(plugin, "env")]
    return {each for each in values if len(each) > 3}


def masked(said: str, secrets: t.Iterable[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        said = said.replace(secret, MASK)
    return said


def shown(params: Json) -> Json:
    """The parameters of a module as Ansible may show them: of a kubeconfig that is no path, nothing."""
    kubeconfig = params.get("kubeconfig")
    is_hidden = kubeconfig and not (isinstance(kubeconfig, str) and is_path(kubeconfig))
    return {**params, "kubeconfig": HIDDEN} if is_hidden else params


def decoded(kubeconfig: str) -> str:
    """A kubeconfig as text, of base64 too."""
    try:
        told = base64.b64decode("".join(kubeconfig.split()), validate=True).decode()
    except ValueError:
        return kubeconfig
    return told if is_content(told) else kubeconfig


def is_content(kubeconfig: str) -> bool:
    return "\n" in kubeconfig or kubeconfig.lstrip().startswith("{")


def is_path(value: str) -> bool:
    """Whether it may be a path, or several (of a kubeconfig), rather than the content of a file, or a secret at the wrong place."""
    if is_content(decoded(value)):
        return False
    paths = value.split(os.pathsep)
    if any(os.path.exists(os.path.expanduser(path)) for path in paths):
        return True
    return all(len(name) <= _LONGEST_NAME for path in paths for name in path.split(os.sep)) and (
        len(value) <= _SHORT or value.startswith((os.sep, ".", "~")) or bool(_FILE_NAME.search(value)))


def without_password(address: str) -> str:
    """An address without its user and password."""
    scheme, _credentials, rest = _parted(address)
    return f"{scheme}{rest}"


def _parted(address: str) -> tuple[str, str, str]:
    """What is before the credentials of an address, these, and what comes after the last @: a password that is not escaped may
    have any of / ? # : @ in it."""
    scheme = match[0] if (match := _SCHEME.match(address)) else ""
    credentials, _at, rest = address[len(scheme):].rpartition("@")
    return scheme, credentials, rest


def _content(kubeconfig: t.Any) -> t.Any:
    """What is in a kubeconfig that is given as text."""
    if not isinstance(kubeconfig, str) or is_path(kubeconfig):
        return kubeconfig
    try:
        import yaml

        return yaml.safe_load(decoded(kubeconfig))
    except (ImportError, RecursionError, ValueError):  # without PyYAML, nothing of it is used
        return None
    except yaml.YAMLError:
        return None


def _basic(pair: str) -> str:
    """What a header has of "user:password"."""
    return base64.b64encode(pair.encode(errors="replace")).decode()


def _of_address(address: str) -> set[str]:
    """The password in an address, or all before its host where there is no colon. Not every address can be parsed."""
    credentials = _parted(address)[1]
    password = credentials.partition(":")[2] or credentials
    return {password, unquote(password), quote(unquote(password), safe="")} if password else set()
