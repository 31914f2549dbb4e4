# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Set up the connection without a request: address, credentials and certificates."""

from __future__ import annotations

import base64
import datetime
import http.server
import json
import os
import shlex
import ssl
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import parse_qs

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from kubernetes.config import exec_provider, incluster_config, kube_config

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import (
    connection,
    manifest_source,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.connection import (
    ARGUMENT_SPEC,
    Connection,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model import shell
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

SECRET = "s3cret-t0ken-of-the-tests"
HOST_AND_KEY = {"host": "https://one:6443/", "api_key": SECRET}
USER_AGENT = {"User-Agent": connection.USER_AGENT}
HINT = "give kubeconfig (or K8S_AUTH_KUBECONFIG), or host and api_key, or run inside the cluster"


@pytest.fixture(autouse=True)
def hide_local_configuration(monkeypatch, tmp_path):
    """Hide the kubeconfig of the home folder, and the cluster in which the tests may run."""
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "default"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


@pytest.fixture
def write_file(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return str(path)
    return write


def config(user=None, server="https://kube:6443", current="main"):
    """Return a kubeconfig whose contexts main and other have different servers."""
    return {
        "apiVersion": "v1", "kind": "Config", "current-context": current,
        "clusters": [{"name": name, "cluster": {"server": url}}
                     for name, url in (("main", server), ("other", "https://other"))],
        "users": [{"name": "me", "user": {"token": SECRET} if user is None else user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "me"}}
                     for name in ("main", "other")],
    }


def connect(environment=None, **params):
    return Connection({**dict.fromkeys(ARGUMENT_SPEC), **params}, environment or {})


def error_of(environment=None, **params):
    with pytest.raises(RolloutError) as error:
        connect(environment, **params)
    return error.value


def pool_options(client):
    return client.pool.connection_pool_kw


# Options


def test_host_with_api_key():
    client = connect(**HOST_AND_KEY)

    assert client.server == "https://one:6443"
    assert dict(client.headers()) == {**USER_AGENT, "Authorization": f"Bearer {SECRET}"}


def test_host_with_username_and_password():
    client = connect(host="https://one", username="me", password=SECRET)

    assert dict(client.headers()) == {**USER_AGENT,
                                      "Authorization": "Basic "
                                      + base64.b64encode(f"me:{SECRET}".encode()).decode()}


def test_host_with_client_certificate(write_file):
    client = connect(host="https://one", client_cert=write_file("cert", "c"),
                     client_key=write_file("key", "k"))

    assert (pool_options(client)["cert_file"].endswith("cert")
            and pool_options(client)["key_file"].endswith("key"))
    assert dict(client.headers()) == USER_AGENT


def test_complete_options_need_no_kubeconfig():
    assert connect(**HOST_AND_KEY, kubeconfig="/not/there").server == "https://one:6443"


@pytest.mark.parametrize("validate_certs, expected",
                         [(True, ssl.CERT_REQUIRED), (False, ssl.CERT_NONE),
                          (None, ssl.CERT_REQUIRED)])
def test_validate_certs(validate_certs, expected):
    assert pool_options(connect(**HOST_AND_KEY,
                                validate_certs=validate_certs))["cert_reqs"] == expected


def test_ca_cert(write_file):
    path = write_file("ca", "c")

    assert pool_options(connect(**HOST_AND_KEY, ca_cert=path))["ca_certs"] == path


@pytest.mark.parametrize("option", ["ca_cert", "client_cert", "client_key"])
def test_missing_certificate_file_is_named(option):
    error = error_of(**HOST_AND_KEY, **{option: "/not/there"})

    assert error.what == f"{option} /not/there does not exist"


def test_proxy_and_no_proxy():
    assert connect(**HOST_AND_KEY, proxy="http://proxy:3128").pool.proxy.host == "proxy"
    assert connect(**HOST_AND_KEY, proxy="http://proxy:3128", no_proxy="one").pool.proxy is None


CREDENTIALS = "Basic " + base64.b64encode(f"me:{SECRET} ü".encode("latin-1")).decode()


@pytest.mark.parametrize("options, expected", [
    ({}, {}),
    ({"proxy": f"http://me:{SECRET}%20%FC@proxy:3128"}, {"proxy-authorization": CREDENTIALS}),
    ({"proxy_headers": {"proxy_basic_auth": f"me:{SECRET} ü"}},
     {"proxy-authorization": CREDENTIALS}),
    ({"proxy": "http://you@proxy:3128",
      "proxy_headers": {"proxy_basic_auth": f"me:{SECRET} ü", "basic_auth": f"me:{SECRET} ü"}},
     {"proxy-authorization": CREDENTIALS, "authorization": CREDENTIALS}),
    ({"proxy_headers": {"user_agent": "curl/8", "basic_auth": None}}, {"user-agent": "curl/8"}),
], ids=["none", "in the URL", "as a header", "URL and header", "User-Agent"])
def test_credentials_for_a_proxy(options, expected):
    """urllib3 ignores user and password in the URL of a proxy."""
    client = connect(**{**HOST_AND_KEY, "proxy": "http://proxy:3128", **options})

    assert client.pool.proxy_headers == {"user-agent": connection.USER_AGENT, **expected}
    assert (SECRET not in str(client.headers()["User-Agent"])
            and "Proxy-Authorization" not in client.headers())


def test_credentials_for_the_proxy_of_a_kubeconfig():
    content = config()
    content["clusters"][0]["cluster"]["proxy-url"] = f"http://me:{SECRET}%20%FC@proxy"

    assert connect(kubeconfig=content).pool.proxy_headers["proxy-authorization"] == CREDENTIALS


def test_user_agent_has_name_and_version_of_the_collection():
    galaxy = yaml.safe_load((Path(__file__).parents[3] / "galaxy.yml").read_text("utf-8"))

    assert f"{galaxy['namespace']}.{galaxy['name']}/{galaxy['version']}" == connection.USER_AGENT


def test_impersonation_headers():
    headers = connect(**HOST_AND_KEY, impersonate_user="jane",
                      impersonate_groups=["dev", "ops"]).headers()

    assert headers["Impersonate-User"] == "jane"
    assert headers.getlist("Impersonate-Group") == ["dev", "ops"]


# The environment


@pytest.mark.parametrize("variables, expected", [
    ({"HOST": "https://two", "API_KEY": "k"}, {"host": "https://two", "api_key": "k"}),
    ({"KUBECONFIG": "path", "CONTEXT": "c"}, {"kubeconfig": "path", "context": "c"}),
    ({"USERNAME": "u", "PASSWORD": "p"}, {"username": "u", "password": "p"}),
    ({"CLIENT_CERT": "c", "CLIENT_KEY": "k", "CA_CERT": "a"},
     {"client_cert": "c", "client_key": "k", "ca_cert": "a"}),
    ({"CERT_FILE": "c", "KEY_FILE": "k", "SSL_CA_CERT": "a"},
     {"client_cert": "c", "client_key": "k", "ca_cert": "a"}),
    ({"PROXY": "p", "NO_PROXY": "n"}, {"proxy": "p", "no_proxy": "n"}),
    ({"PROXY_HEADERS_PROXY_BASIC_AUTH": "a", "PROXY_HEADERS_BASIC_AUTH": "b",
      "PROXY_HEADERS_USER_AGENT": "c"},
     {"proxy_headers": {"proxy_basic_auth": "a", "basic_auth": "b", "user_agent": "c"}}),
    ({"PERSIST_CONFIG": "true"}, {"persist_config": True}),
    ({"PERSIST_CONFIG": "False"}, {"persist_config": False}),
    ({"VALIDATE_CERTS": "true"}, {"validate_certs": True}),
    ({"VERIFY_SSL": "False"}, {"validate_certs": False}),
    ({"VERIFY_SSL": "no"}, {"validate_certs": False}),
    ({"VALIDATE_CERTS": "yes", "VERIFY_SSL": "no"}, {"validate_certs": True}),
    ({"IMPERSONATE_USER": "jane", "IMPERSONATE_GROUPS": "dev, ops,"},
     {"impersonate_user": "jane", "impersonate_groups": ["dev", "ops"]}),
    ({"HOST": ""}, {}),
    ({"UNKNOWN": "x"}, {}),
], ids=" ".join)
def test_environment_variables_of_kubernetes_core(variables, expected):
    environment = {f"K8S_AUTH_{name}": value for name, value in variables.items()}

    assert connection._options(dict.fromkeys(ARGUMENT_SPEC), environment) == expected


def test_each_option_has_a_variable():
    environment = {f"K8S_AUTH_{option.upper()}": "yes"
                   for option in [*ARGUMENT_SPEC, "proxy_headers_user_agent"]}

    assert connection._options({}, environment).keys() == ARGUMENT_SPEC.keys()


@pytest.mark.parametrize("host, expected",
                         [("https://one", "https://one"), ("", "https://two"),
                          (None, "https://two")],
                         ids=["option", "empty option of a survey", "no option"])
def test_option_overrides_the_environment(host, expected):
    environment = {"K8S_AUTH_HOST": "https://two", "K8S_AUTH_API_KEY": SECRET}

    assert connect(environment, host=host).server == expected


def test_variables_of_an_awx_credential(write_file):
    client = connect({"K8S_AUTH_HOST": "https://awx", "K8S_AUTH_API_KEY": SECRET,
                      "K8S_AUTH_VERIFY_SSL": "False"})

    assert client.server == "https://awx" and pool_options(client)["cert_reqs"] == ssl.CERT_NONE
    assert client.headers()["Authorization"] == f"Bearer {SECRET}"


# Kubeconfigs


@pytest.mark.parametrize("path",
                         ["/not/there", "config",
                          "environments/production/kubeconfigs/of-the-cluster-in-lyon.yml"])
def test_missing_kubeconfig_is_reported(path):
    assert error_of(kubeconfig=path).what == f"there is no kubeconfig at {path}"


def as_base64(content, width=10**6):
    text = base64.b64encode(yaml.safe_dump(content).encode()).decode()
    return "\n".join(text[start:start + width] for start in range(0, len(text), width))


@pytest.mark.parametrize("form",
                         [dict, yaml.safe_dump, json.dumps,
                          lambda content: "\n" + json.dumps(content), as_base64,
                          lambda content: as_base64(content, 76)],
                         ids=["dict", "YAML", "JSON", "JSON after a line end", "base64",
                              "base64 in lines"])
def test_kubeconfig_as_content(form):
    client = connect(kubeconfig=form(config()))

    assert client.server == "https://kube:6443"
    assert client.headers()["Authorization"] == f"Bearer {SECRET}"


def test_kubeconfig_as_one_or_several_paths(write_file):
    path = write_file("config", config())

    assert connect(kubeconfig=path).server == "https://kube:6443"
    assert connect(kubeconfig=f"/not/there:{path}").server == "https://kube:6443"
    assert connect({"K8S_AUTH_KUBECONFIG": path}).server == "https://kube:6443"


def test_kubeconfig_at_the_default_path(write_file):
    write_file("default", config())

    assert connect().server == "https://kube:6443"


def test_context_selects_the_server():
    assert connect(kubeconfig=config(), context="other").server == "https://other"


@pytest.mark.parametrize("option, reader",
                         [("host", lambda client: client.server),
                          ("api_key", lambda client: client.headers()["Authorization"])])
def test_option_overrides_the_kubeconfig(option, reader):
    assert reader(connect(kubeconfig=config(), **{option: "https://mine"})).endswith("https://mine")


def test_host_option_survives_a_renewed_token(write_file):
    """The kubernetes package resets the server to the kubeconfig's server with each token."""
    client = connect(kubeconfig=config(), host="https://mine")

    client.headers()

    assert client.server == "https://mine"


@pytest.fixture(scope="module")
def certificate():
    """Return (certificate, key) in PEM format. The certificate is self-signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "me")])
    now = datetime.datetime.now(datetime.UTC)
    signed_certificate = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(
        key.public_key())
        .serial_number(1).not_valid_before(now).not_valid_after(
        now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None),
                       critical=True).sign(key, hashes.SHA256()))
    key_pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                serialization.NoEncryption())
    return signed_certificate.public_bytes(serialization.Encoding.PEM), key_pem


@pytest.mark.parametrize("has_memfd", [True, False], ids=["memory", "files"])
def test_certificate_and_key_of_a_kubeconfig_leave_no_file(
        certificate, monkeypatch, tmp_path, has_memfd):
    """The kubernetes package would leave files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    temporary_files = []
    if not has_memfd:
        monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(tempfile, "mkstemp",
                        lambda *arguments, mkstemp=tempfile.mkstemp: temporary_files.append(1)
                        or mkstemp(*arguments))
    open_file_count = len(os.listdir("/proc/self/fd"))
    certificate_data, key_data = (base64.b64encode(part).decode() for part in certificate)
    content = config(user={"client-certificate-data": certificate_data,
                           "client-key-data": key_data})
    content["clusters"][0]["cluster"]["certificate-authority-data"] = certificate_data

    client = connect(kubeconfig=content)
    client.renew(client.generation)

    assert list(tmp_path.iterdir()) == [] and len(os.listdir("/proc/self/fd")) == open_file_count
    assert bool(temporary_files) != has_memfd
    context = pool_options(client)["ssl_context"]
    assert context.verify_mode == ssl.CERT_REQUIRED and context.check_hostname
    assert [root["subject"] for root in context.get_ca_certs()] == [((("commonName", "me"),),)]
    assert pool_options(client).get("key_file") is None


def test_kubernetes_package_is_not_modified(certificate, write_file):
    """Ansible's own process may use the package, and start programs, in other threads."""
    before = vars(kube_config).copy(), vars(exec_provider).copy()
    data = [base64.b64encode(document).decode() for document in certificate]

    connect(kubeconfig=config(user={"client-certificate-data": data[0],
                                    "client-key-data": data[1]}))
    connect(kubeconfig=config(user=credential_plugin(write_file, COUNTING_PLUGIN)))

    assert (vars(kube_config), vars(exec_provider)) == before
    assert kube_config._temp_files == {}


def test_key_that_does_not_match_the_certificate_is_an_error_and_leaves_no_file(
        certificate, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    data = base64.b64encode(certificate[0]).decode()

    error = error_of(kubeconfig=config(user={"client-certificate-data": data,
                                             "client-key-data": data}))

    assert (error.what == "the connection to Kubernetes cannot be set up"
            and list(tmp_path.iterdir()) == [])


@pytest.fixture(params=[serialization.PrivateFormat.PKCS8,
                        serialization.PrivateFormat.TraditionalOpenSSL],
                ids=["PKCS8", "traditional"])
def encrypted_key(request, certificate):
    key = serialization.load_pem_private_key(certificate[1], None)
    return key.private_bytes(
        serialization.Encoding.PEM, request.param,
        serialization.BestAvailableEncryption(SECRET.encode()))


@pytest.mark.parametrize("place", ["inline", "key file", "key option", "certificate option",
                                   "with inline authority"])
def test_encrypted_key_is_refused_before_a_prompt(encrypted_key, certificate, write_file, place):
    """OpenSSL would wait for the pass phrase on the terminal."""
    path = write_file("key.pem", (certificate[0] + encrypted_key).decode())
    data, key_data = (base64.b64encode(part).decode() for part in (certificate[0], encrypted_key))
    users = {"inline": {"client-certificate-data": data, "client-key-data": key_data},
             "key file": {"client-certificate": path, "client-key": path},
             "with inline authority": {"client-certificate-data": data, "client-key": path}}
    content = config(user=users.get(place))
    if place == "with inline authority":
        content["clusters"][0]["cluster"]["certificate-authority-data"] = data
    options = {"key option": {"client_cert": path, "client_key": path},
               "certificate option": {"client_cert": path}}

    error = error_of(kubeconfig=content, **options.get(place, {}))

    name = "the kubeconfig" if place == "inline" else path
    assert error.what == f"the client key in {name} is encrypted"
    assert "openssl pkey" in error.next_command


def test_validate_certs_false_ignores_the_authority_of_a_kubeconfig(certificate):
    content = config()
    content["clusters"][0]["cluster"]["certificate-authority-data"] = base64.b64encode(
        certificate[0]).decode()

    context = pool_options(connect(kubeconfig=content, validate_certs=False))["ssl_context"]

    assert context.verify_mode == ssl.CERT_NONE and not context.check_hostname


def test_renew_reads_the_kubeconfig_again(write_file):
    path = write_file("config", config())
    client = connect(kubeconfig=path)
    write_file("config", config(user={"token": "another"}))

    client.renew(client.generation)

    assert client.headers()["Authorization"] == "Bearer another"


def test_token_is_requested_at_most_once_a_second(monkeypatch):
    client, tokens, now = connect(**HOST_AND_KEY), iter(["one", "two"]), [1000.0]
    monkeypatch.setattr(connection.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(client._configuration, "refresh_api_key_hook",
                        lambda configuration: configuration.api_key.update(
                            BearerToken=next(tokens)))

    headers = []
    for seconds in (0, 0.5, 0.4, 0.2):
        now[0] += seconds
        headers.append(client.headers()["Authorization"])

    assert headers == ["one", "one", "one", "two"]


def test_renew_reads_the_token_file_again(write_file):
    path = write_file("token", "one")
    client = connect(kubeconfig=config(user={"tokenFile": path}))
    assert client.headers()["Authorization"] == "Bearer one"
    write_file("token", "two")

    client.renew(client.generation)

    assert client.headers()["Authorization"] == "Bearer two"


class IdentityProvider(http.server.BaseHTTPRequestHandler):
    """An OIDC provider with one-time refresh tokens."""

    def do_GET(self):
        self.reply({"token_endpoint": f"http://{self.headers['Host']}/token"})

    def do_POST(self):
        tokens = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())[
            "refresh_token"]
        self.server.spent_tokens += tokens
        self.reply({"id_token": token_with_expiry(2**31), "refresh_token": f"{tokens[0]}+",
                    "access_token": "a", "token_type": "Bearer"})

    def reply(self, content):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_arguments):
        pass


def token_with_expiry(expiry):
    """Return a JSON Web Token that expires at `expiry`."""
    parts = ({"alg": "none"}, {"exp": expiry}, {})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
                    for part in parts)


@pytest.mark.parametrize("options, stored_token",
                         [({}, "one"), ({"persist_config": False}, "one"),
                          ({"persist_config": True}, "one+")])
def test_refreshed_token_is_written_to_the_kubeconfig_only_with_persist_config(
        options, stored_token, write_file, monkeypatch):
    monkeypatch.setenv("OAUTHLIB_INSECURE_TRANSPORT", "1")
    with http.server.HTTPServer(("127.0.0.1", 0), IdentityProvider) as provider:
        provider.spent_tokens = []
        threading.Thread(target=provider.serve_forever, kwargs={"poll_interval": 0.01},
                         daemon=True).start()
        path = write_file("config", config(user={"auth-provider": {"name": "oidc", "config": {
            "client-id": "me", "client-secret": SECRET, "id-token": token_with_expiry(1),
            "refresh-token": "one",
            "idp-issuer-url": f"http://127.0.0.1:{provider.server_port}"}}}))

        headers = connect(kubeconfig=path, **options).headers()

        provider.shutdown()
    stored = yaml.safe_load(Path(path).read_text())["users"][0]["user"]["auth-provider"]["config"][
        "refresh-token"]
    assert (headers["Authorization"] == f"Bearer {token_with_expiry(2**31)}"
            and provider.spent_tokens == ["one"]
            and stored == stored_token)


def credential_plugin(write_file, body):
    """Return a user of a kubeconfig with this shell script as credential plugin."""
    script = write_file("plugin", body)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh",
                     "args": [script],
                     "interactiveMode": "Never"}}


COUNTING_PLUGIN = """
echo x >> "$0.count"
printf '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",\
"status":{"token":"t%d"}}' $(wc -l < "$0.count")
"""


def test_renew_runs_the_credential_plugin_again(write_file):
    client = connect(kubeconfig=config(user=credential_plugin(write_file, COUNTING_PLUGIN)))
    first = client.headers()["Authorization"]

    client.renew(client.generation)

    assert first.startswith("Bearer t")
    assert client.headers()["Authorization"] > first


@pytest.mark.parametrize("body, why", [
    ("echo no session >&2; exit 3", "exec: process returned 3. no session"),
    (f'echo "bad: $PASSWORD {SECRET}" >&2; exit 1', "bad: ******** ********"),
    ("echo nonsense", "exec: failed to decode process output"),
    ("""echo '{"apiVersion": "client.authentication.k8s.io/v1", """
     """"kind": "ExecCredential", "status": {}}'""",
     "missing token or clientCertificateData"),
], ids=["exit status", "environment in the output", "not JSON", "no token"])
@pytest.mark.parametrize("as_file", [True, False], ids=["path", "content"])
def test_failing_credential_plugin_is_reported(write_file, body, why, as_file, capfd):
    """Without this error, the only error would be that the server rejects system:anonymous."""
    user = credential_plugin(write_file, body)
    user["exec"]["env"] = [{"name": "PASSWORD", "value": SECRET}]

    content = config(user=user)
    error = error_of(kubeconfig=write_file("config", content) if as_file else content)

    assert error.what == "the credential plugin in the kubeconfig failed" and why in error.why
    assert SECRET not in error.message and capfd.readouterr().err == ""


REPORTING_PLUGIN = """
printf "$KUBERNETES_EXEC_INFO" > "$0.info"
printf '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",\
"status":{"token":"t"}}'
"""


def test_credential_plugin_gets_cluster_info_only_on_request(write_file):
    user = credential_plugin(write_file, REPORTING_PLUGIN)
    content = config(user=user)
    content["clusters"][0]["cluster"] |= {
        "tls-server-name": "kube", "extensions": [
            {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}]}
    infos = []
    for user["exec"]["provideClusterInfo"] in (False, True):
        connect(kubeconfig=content)
        infos.append(json.loads(Path(user["exec"]["args"][0] + ".info").read_text()))

    cluster = {"server": "https://kube:6443", "tls-server-name": "kube",
               "config": {"audience": "a"}}
    assert [info["spec"] for info in infos] == [
        {"interactive": False}, {"interactive": False, "cluster": cluster}]
    assert {(info["apiVersion"], info["kind"]) for info in infos} == {
        ("client.authentication.k8s.io/v1", "ExecCredential")}


#: By case: (fields of the cluster, options, expected fields of the cluster info).
CLUSTER_INFOS = {
    "authority in a file": (
        {"certificate-authority": "ca.pem"}, {}, {"certificate-authority-data": "ZmlsZQ=="}),
    "inline authority and a file": (
        {"certificate-authority": "ca.pem", "certificate-authority-data": "QUFB"}, {},
        {"certificate-authority-data": "QUFB"}),
    "host": ({"tls-server-name": "kube"}, {"host": f"https://me:{SECRET}@mine"},
             {"server": "https://mine", "tls-server-name": "kube"}),
    "proxy": ({"proxy-url": "http://one"}, {"proxy": "http://two"}, {"proxy-url": "http://two"}),
    "ca_cert": ({"certificate-authority-data": "QUFB"}, {"ca_cert": "ca.pem"},
                {"certificate-authority-data": "ZmlsZQ=="}),
    "validate_certs": ({"insecure-skip-tls-verify": True}, {"validate_certs": True},
                       {"insecure-skip-tls-verify": False}),
    "no validation": ({"certificate-authority": "ca.pem"}, {"validate_certs": False},
                      {"insecure-skip-tls-verify": True}),
}


@pytest.mark.parametrize("fields, options, expected", CLUSTER_INFOS.values(), ids=CLUSTER_INFOS)
def test_cluster_info_of_a_credential_plugin_is_that_of_the_task(
        write_file, monkeypatch, tmp_path, fields, options, expected):
    """As in client-go, with the content of the file of the certificate authority."""
    monkeypatch.chdir(tmp_path)
    write_file("ca.pem", "file")
    user = credential_plugin(write_file, REPORTING_PLUGIN)
    user["exec"]["provideClusterInfo"] = True
    content = config(user=user, server="http://kube")
    content["clusters"][0]["cluster"] |= fields

    connect(kubeconfig=write_file("config", content), **options)

    info = json.loads(Path(user["exec"]["args"][0] + ".info").read_text())
    assert info["spec"]["cluster"] == {"server": "http://kube", **expected}


@pytest.mark.parametrize("is_inline", [False, True])
@pytest.mark.parametrize("surplus", [0, 1])
def test_credential_plugin_gets_no_authority_that_exceeds_a_variable(
        write_file, is_inline, surplus):
    user = credential_plugin(write_file, REPORTING_PLUGIN)
    user["exec"]["provideClusterInfo"] = True
    content = config(user=user, server="http://kube")
    cluster = content["clusters"][0]["cluster"]
    cluster["certificate-authority-data"] = ""
    connect(kubeconfig=content)
    info_path = Path(user["exec"]["args"][0] + ".info")
    variable_length = len(f"KUBERNETES_EXEC_INFO={info_path.read_text()}") + 1
    authority = base64.b64encode(b"A" * 96_000).decode()
    cluster["tls-server-name"] = "x" * (
        128 * 1024 - variable_length - len(', "tls-server-name": ""') - len(authority) + surplus)
    cluster["certificate-authority-data"] = authority
    if not is_inline:
        del cluster["certificate-authority-data"]
        cluster["certificate-authority"] = write_file("ca.pem", "A" * 96_000)

    connect(kubeconfig=write_file("config", content))

    info = json.loads(info_path.read_text())["spec"]["cluster"]
    assert info.get("certificate-authority-data") == (None if surplus else authority)
    assert info["tls-server-name"] == cluster["tls-server-name"]


def test_credential_plugin_with_a_certificate(write_file, certificate):
    documents = dict(zip(("clientCertificateData", "clientKeyData"),
                         (document.decode() for document in certificate), strict=True))
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
              "status": documents}
    Path(write_file("answer", json.dumps(answer)))
    user = credential_plugin(write_file, 'cat "$(dirname "$0")/answer"')

    client = connect(kubeconfig=config(user=user))

    assert "ssl_context" in pool_options(client) and "Authorization" not in client.headers()


@pytest.mark.parametrize("key", ["BearerToken", "authorization"])
def test_token_is_read_from_each_key_that_the_kubernetes_package_uses(key):
    client = connect(**HOST_AND_KEY)
    client._configuration.api_key = {key: f"Bearer {SECRET}"}

    assert client.headers()["Authorization"] == f"Bearer {SECRET}"


@pytest.mark.parametrize("user", [{"tokenFile": "token"}, {"token": f"{SECRET}\n"}],
                         ids=["file", "text"])
def test_line_end_after_a_token_is_stripped(user, write_file):
    write_file("token", f"{SECRET}\n")

    client = connect(kubeconfig=write_file("config", config(user=user)))

    assert client.headers()["Authorization"] == f"Bearer {SECRET}"


@pytest.mark.parametrize("token", [f"{SECRET}\nmore", f"{SECRET}\u2026"],
                         ids=["line end", "not ASCII"])
def test_invalid_token_is_reported_without_the_token(token):
    """The HTTP library would quote the token."""
    with pytest.raises(RolloutError) as error:
        connect(host="https://one", api_key=token).headers()

    assert (error.value.what.startswith("the token is not valid")
            and SECRET not in error.value.message)


def test_service_account_inside_a_cluster(monkeypatch, write_file):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", write_file("token", SECRET))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", write_file("ca.crt", "c"))
    write_file("default", config())

    client = connect()

    assert (client.server, client.headers()["Authorization"].lower()) == (
        "https://10.0.0.1:443", f"bearer {SECRET}")
    assert connect(context="other").server == "https://other"


def config_with_namespaces(**namespaces):
    """Return a kubeconfig whose contexts have these namespaces, given by name of the context."""
    content = config()
    for context in content["contexts"]:
        context["context"] |= {key: value for key, value in {
            "namespace": namespaces.get(context["name"])}.items() if value}
    return content


@pytest.mark.parametrize("namespaces, options, expected", [
    ({"main": "shop"}, {}, "shop"), ({"main": "shop", "other": "bar"}, {"context": "other"}, "bar"),
    ({"main": "shop"}, {"context": "other"}, "default"), ({}, {}, "default"),
    ({"main": "shop"}, HOST_AND_KEY, "default"),
    ({"main": "shop"}, {"host": "https://one"}, "shop"),
    ({"main": "shop"}, {"context": "absent"}, "default"),
], ids=["current context", "named context", "context without a namespace", "no namespace",
        "no kubeconfig", "another address", "no such context"])
@pytest.mark.parametrize("is_path", [True, False], ids=["path", "content"])
def test_default_namespace_is_that_of_the_context(write_file, namespaces, options, expected,
                                                  is_path):
    content = config_with_namespaces(**namespaces)
    kubeconfig = write_file("named", content) if is_path else content

    assert connection.default_namespace({"kubeconfig": kubeconfig, **options}, {}) == expected


def test_default_namespace_is_read_from_the_default_kubeconfig_and_the_environment(write_file):
    write_file("default", config_with_namespaces(main="shop", other="bar"))

    assert connection.default_namespace({}, {}) == "shop"
    assert connection.default_namespace({}, {"K8S_AUTH_CONTEXT": "other"}) == "bar"
    assert connection.default_namespace({"kubeconfig": "/absent"}, {}) == "default"


def test_default_namespace_inside_a_cluster_is_the_namespace_of_the_pod(monkeypatch, write_file):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", write_file("token", SECRET))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", write_file("ca.crt", "c"))
    monkeypatch.setattr(connection, "_POD_NAMESPACE_FILE", write_file("namespace", "pods-own\n"))
    write_file("default", config_with_namespaces(main="shop", other="bar"))

    assert connection.default_namespace({}, {}) == "pods-own"
    assert connection.default_namespace({"context": "other"}, {}) == "bar"


# Unreadable configurations


def config_without(key):
    return {field: value for field, value in config().items() if field != key}


#: By case: (function that returns the kubeconfig, `what` of the error, part of its `why`).
INVALID_KUBECONFIGS = {
    "missing file": (lambda _: "/not/there", "there is no kubeconfig at /not/there",
                     ""),
    "text that is not YAML": (
        lambda _: f"users:\n- name: me\n  user: {{token: {SECRET}",
        "the content of kubeconfig is not valid YAML", "line 3"),
    "text with an undefined alias": (lambda _: f"users:\n- *{SECRET}",
                                     "the content of kubeconfig is not valid YAML", "line 2"),
    "text with an undefined tag": (lambda _: f"users:\n- !{SECRET} x",
                                   "the content of kubeconfig is not valid YAML", "line 2"),
    "unknown context": (
        lambda _: config(current="nope"), "the connection to Kubernetes cannot be set up",
        "nope"),
    "no clusters": (lambda _: config_without("clusters"),
                    "the connection to Kubernetes cannot be set up", ""),
    "no contexts": (lambda _: config_without("contexts"),
                    "the connection to Kubernetes cannot be set up", ""),
    "users as a text": (
        lambda _: {**config(), "users": SECRET}, "the connection to Kubernetes cannot be set up",
        ""),
    "certificate that is not base64": (
        lambda _: config(user={"client-certificate-data": "abc", "client-key-data": SECRET}),
        "the connection to Kubernetes cannot be set up", ""),
    "dict with an empty key": (lambda _: {"": ""},
                               "the connection to Kubernetes cannot be set up", ""),
    "empty file": (lambda write_file: write_file("config", ""),
                   "the connection to Kubernetes cannot be set up", ""),
    "file that is not YAML": (
        lambda write_file: write_file("config", f"users:\n- name: me\n  user: {{token: {SECRET}"),
        "the kubeconfig is not valid YAML", ""),
    "file with a list": (lambda write_file: write_file("config", [SECRET]),
                         "the connection to Kubernetes cannot be set up", ""),
}


@pytest.mark.parametrize("kubeconfig, what, why", INVALID_KUBECONFIGS.values(),
                         ids=INVALID_KUBECONFIGS)
def test_error_of_an_invalid_kubeconfig_is_one_sentence_without_secrets(
        kubeconfig, what, why, write_file):
    error = error_of(kubeconfig=kubeconfig(write_file))

    assert error.what == what and why in error.why
    assert error.next_command == HINT
    assert SECRET not in repr(error.as_result()) and "\n" not in error.what + error.why


@pytest.mark.parametrize("as_file", [False, True])
def test_unknown_context_lists_the_contexts(as_file, write_file):
    kubeconfig = write_file("config", config()) if as_file else config()

    for context, suggestion in (("nope", ""), ("mian", "; did you mean main?")):
        error = error_of(kubeconfig=kubeconfig, context=context)
        assert (error.what, error.why) == (f"the kubeconfig has no context {context}{suggestion}",
                                           "available contexts: main, other")


def test_unknown_context_lists_ten_contexts_of_several_files(write_file):
    contexts = [{"name": f"c{number}", "context": {"cluster": "main", "user": "me"}}
                for number in range(12)]
    first, second = (write_file(str(half), {**config(), "contexts": contexts[half::2]})
                     for half in (0, 1))

    error = error_of(kubeconfig=f"{first}:{second}:/not/there", context="nowhere")

    assert error.why == "available contexts: c0, c2, c4, c6, c8, c10, c1, c3, c5, c7 and 2 more"
    assert error_of(kubeconfig={**config(), "contexts": []},
                    context="nowhere").why == "the kubeconfig has no contexts"


def test_no_list_of_contexts_for_an_invalid_context(write_file):
    error = error_of(kubeconfig={**config(), "clusters": []}, context="main")

    assert error.what == "the connection to Kubernetes cannot be set up" and "main" in error.why


def test_missing_configuration_names_the_options(tmp_path):
    error = error_of()

    assert error.what == f"there is no kubeconfig at {tmp_path / 'default'}"
    assert error.next_command == HINT


def test_context_without_kubeconfig_uses_the_default_path(tmp_path):
    assert error_of(context="main").what == f"there is no kubeconfig at {tmp_path / 'default'}"


KUBECONFIG_TEXT = yaml.safe_dump(config())
KUBECONFIG_BASE64 = base64.b64encode(KUBECONFIG_TEXT.encode()).decode()


@pytest.mark.parametrize("kubeconfig, expected", [
    (config(), {SECRET}),
    (KUBECONFIG_TEXT, {SECRET, KUBECONFIG_TEXT, KUBECONFIG_TEXT.strip()}),
    (KUBECONFIG_BASE64, {SECRET, KUBECONFIG_BASE64}),
    (config(user={"password": "p", "client-key-data": "k", "client-certificate-data": "public",
                  "username": "u"}), {"p", "k"}),
    (config(user={"exec": {"command": "c", "args": ["prod"],
                           "env": [{"name": "N", "value": "prod"}]}}), set()),
    (config(user={"auth-provider": {"name": "n", "config": {"id-token": "i"}}}), {"i"}),
    ("/home/me/.kube/config", set()),
    (None, set()),
    ("a: [\n", {"a: [\n", "a: ["}),
    ("c3Rvcm0" * 200, {"c3Rvcm0" * 200}),
    (config(server="https://me:pw@kube"), {SECRET, "pw"}),
    ({"clusters": [{"cluster": {"proxy-url": "http://me:p%40@["}}]}, {"p%40", "p@"}),
    ({"clusters": [{"cluster": 1}, 2], "users": "x"}, set()),
], ids=["token", "token in text", "token in base64", "password and key",
        "arguments and environment of a plugin", "auth-provider",
        "path", "none", "invalid YAML", "neither path nor content",
        "server URL", "proxy URL", "wrong types"])
def test_secrets_of_a_kubeconfig(kubeconfig, expected):
    assert connection.secrets({"kubeconfig": kubeconfig}) == expected


@pytest.mark.parametrize("url, expected", [
    ("https://cdn/gh/org/repo@1.2/foo.yaml", set()), ("https://me@cdn/x@1", {"me"}),
    ("https://me:pw@cdn/x", {"pw"}), ("https://me:p/w@cdn/x", {"p/w", "p%2Fw"}),
    ("https://me:1?w@cdn", {"1?w", "1%3Fw"}), ("https://me:p@/w@cdn", {"p", "p@/w", "p%40%2Fw"}),
    ("me:pw@cdn", {"pw"}), ("//me:pw@cdn", {"pw"}), ("https:/me:pw@cdn", {"/me:pw", "%2Fme%3Apw"}),
], ids=["path", "user and path", "password", "slash", "question mark", "two signs", "no scheme",
        "only slashes", "one slash"])
def test_secrets_of_the_url_of_a_manifest(url, expected):
    assert manifest_source.secrets({"src": url}) == expected


def test_secrets_of_a_proxy():
    assert connection.secrets({"proxy": "http://me:s3cr%40t@proxy:3128"}) == {"s3cr%40t", "s3cr@t"}
    assert connection.secrets({"proxy": "http://proxy:3128"}) == set()


@pytest.mark.parametrize("params, environment, expected", [
    ({}, {}, {}),
    ({"context": "lyon", "api_key": SECRET, "proxy": f"http://me:{SECRET}@proxy", "username": "me",
      "password": SECRET}, {},
     {"context": "lyon"}),
    ({}, {"K8S_AUTH_CONTEXT": "lyon", "K8S_AUTH_API_KEY": SECRET, "KUBECONFIG": "/not/ours"},
     {"context": "lyon"}),
    ({"context": "lyon"}, {"K8S_AUTH_CONTEXT": "paris"}, {"context": "lyon"}),
    ({"host": f"https://me:{SECRET}@api:6443/k8s?token={SECRET}#{SECRET}"}, {},
     {"host": "https://api:6443/k8s"}),
    ({"host": "https://api/teams/ops@two/k8s"}, {}, {"host": "https://api/teams/ops@two/k8s"}),
    ({"host": f"https://[::1{SECRET}"}, {}, {"host": None}),
    ({"host": f"me:{SECRET}@api"}, {}, {"host": None}),
    ({"kubeconfig": config()}, {}, {"kubeconfig": None}),
    ({"kubeconfig": KUBECONFIG_TEXT}, {}, {"kubeconfig": None}),
    ({"kubeconfig": KUBECONFIG_BASE64}, {}, {"kubeconfig": None}),
], ids=["nothing", "secrets", "environment", "option and environment", "host with credentials",
        "path with @", "invalid host", "not a URL", "content", "text",
        "base64"])
def test_commands_repeat_the_connection_without_secrets(params, environment, expected):
    assert connection.command_options(params, environment) == expected


def test_commands_repeat_the_absolute_path_of_a_kubeconfig(write_file, monkeypatch, tmp_path):
    path = write_file("config", config())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    for spelling in (str(path), os.path.basename(path), f"~/{os.path.basename(path)}"):
        assert connection.command_options({"kubeconfig": spelling}, {}) == {"kubeconfig": str(path)}


@pytest.mark.parametrize("options, is_default, flags", [
    ({}, False, ["--context=other", "-n"]),
    ({}, True, ["--context=other", "-n"]),
    ({"context": "main"}, False, ["--context=main", "-n"]),
    ({"host": "https://one"}, False, ["--context=other", "--server=https://one", "-n"]),
    (HOST_AND_KEY, False, ["--server=https://one:6443/", "-n"]),
], ids=["option", "default", "context", "host", "no kubeconfig"])
def test_commands_use_the_same_files_and_context_as_the_task(write_file, monkeypatch, options,
                                                             is_default, flags):
    """kubectl merges files too, but uses the current context of the first file."""
    paths = os.pathsep.join([write_file("a", config()),
                             write_file("b", {**config(), "current-context": "other"})])
    if is_default:
        monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", paths)
    else:
        options = {**options, "kubeconfig": paths}

    command_options = connection.command_options(options, {})

    words = shlex.split(shell.kubectl(command_options, "shop"))
    assert words == [*([] if is_default else ["env", f"KUBECONFIG={paths}"]), "kubectl", *flags,
                     "shop"]
    if "host" not in options:
        repeated = connection.Connection({**options, **command_options}, {})
        assert repeated.server == connection.Connection(options, {}).server


def test_commands_with_one_file_need_no_context(write_file, monkeypatch):
    path = write_file("a", config())
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", path)

    assert connection.command_options({}, {}) == {}


def test_options_with_credentials_are_never_logged():
    assert {option for option, spec in ARGUMENT_SPEC.items() if spec.get("no_log")} == {
        "api_key", "password", "client_cert", "client_key", "kubeconfig", "host", "proxy",
        "proxy_headers"}


@pytest.mark.parametrize("token", [f"*{SECRET}", f"!{SECRET} x"], ids=["alias", "tag"])
def test_token_that_breaks_the_yaml_is_not_shown(token, write_file):
    content = f"users:\n- name: me\n  user:\n    token: {token}\n"
    error = error_of(kubeconfig=write_file("config", content))

    assert SECRET not in repr(error.as_result())


# Hanging credential plugins

HANGING_PLUGIN = """
sleep 1000 & echo "$!" > "$0.child"
echo "$PASSWORD" >&2
wait
"""


@pytest.mark.parametrize("timeout, seconds", [(None, 0.5), (0.3, 0.3)],
                         ids=["default timeout", "timeout of the task"])
def test_hanging_credential_plugin_is_killed_with_its_children(
        write_file, monkeypatch, timeout, seconds):
    monkeypatch.setattr(connection.exec_plugin, "TIMEOUT", 0.5)
    user = credential_plugin(write_file, HANGING_PLUGIN)
    user["exec"] |= {"args": [*user["exec"]["args"], SECRET],
                     "env": [{"name": "PASSWORD", "value": SECRET}]}

    start = time.monotonic()
    error = error_of(kubeconfig=config(user=user), timeout=timeout)

    assert seconds <= time.monotonic() - start < seconds + 5
    assert error.what == "the credential plugin in the kubeconfig failed"
    assert (error.why == f"sh did not answer within {seconds:g} s and was killed"
            and "log in again" in error.next_command)
    child = int(Path(user["exec"]["args"][0] + ".child").read_text())
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and is_alive(child):
        time.sleep(0.01)
    assert not is_alive(child)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_hanging_credential_plugin_is_killed_at_a_renewal(write_file, monkeypatch):
    monkeypatch.setattr(connection.exec_plugin, "TIMEOUT", 0.3)
    expired_plugin = COUNTING_PLUGIN.replace(
        '"token":', '"expirationTimestamp":"2001-01-01T00:00:00Z","token":')
    user = credential_plugin(write_file, expired_plugin)
    client = connect(kubeconfig=config(user=user))
    Path(user["exec"]["args"][0]).write_text(HANGING_PLUGIN)

    with pytest.raises(RolloutError,
                       match="the credential plugin in the kubeconfig failed") as error:
        client.headers()

    assert error.value.why == "sh did not answer within 0.3 s and was killed"


# Invalid addresses and files


@pytest.mark.parametrize("host, server", [
    (f"https://me:{SECRET}@one:6443/x/", "https://one:6443/x"),
    (f"https://me@example.com:{SECRET}@one", "https://one"),
    (f"//me:{SECRET}@one", "//one"), (f"https:///me:{SECRET}@one", "https:///one"),
    *((url, url) for url in (
        "https://one/teams/ops@two/k8s", "https://one?a@two", "https://one#a@two",
        "https://one\\@two", "https://one:6443/teams/ops%40two/k8s"))])
@pytest.mark.parametrize("place", ["option", "kubeconfig"])
def test_credentials_in_the_server_url_are_removed(host, server, place):
    """The user and password are never sent, and errors would show them."""
    options = {"host": host, "api_key": "k"} if place == "option" else {
        "kubeconfig": config(server=host)}

    assert connect(**options).server == server


@pytest.mark.parametrize("host", [
    *(f"https://me:{password}@one" for password in (f"{SECRET}/b", f"1/{SECRET}", f"1?{SECRET}")),
    "https://one:6443/teams/ops@two/k8s", "https://[::1]/@two"])
def test_at_sign_after_a_colon_and_a_slash_is_refused(host, write_file):
    """It may end a password, or be a part of the path."""
    for options in ({"host": host, "api_key": "k"},
                    {"kubeconfig": write_file("config", config(server=host))}):
        error = error_of(**options)

        assert error.why == ("in the address of the API server, percent-encode an @ in the path as "
                             "%40, and / ? # @ in a password")
        assert SECRET not in repr(error.as_result())


@pytest.mark.parametrize("proxy",
                         [f"http://me:{SECRET}@[bad", f"nonsense://me:{SECRET}@proxy",
                          f"http://me:{SECRET}@proxy:port"])
@pytest.mark.parametrize("place", ["option", "K8S_AUTH_PROXY", "kubeconfig", "file", "HTTPS_PROXY"])
def test_invalid_proxy_is_reported_without_the_password(proxy, place, write_file, monkeypatch):
    content = config()
    content["clusters"][0]["cluster"]["proxy-url"] = proxy
    if place == "HTTPS_PROXY":
        monkeypatch.setenv("HTTPS_PROXY", proxy)
    error = {
        "option": lambda: error_of(**HOST_AND_KEY, proxy=proxy),
        "K8S_AUTH_PROXY": lambda: error_of({"K8S_AUTH_PROXY": proxy}, **HOST_AND_KEY),
        "kubeconfig": lambda: error_of(kubeconfig=content),
        "file": lambda: error_of(kubeconfig=write_file("config", content)),
        "HTTPS_PROXY": lambda: error_of(os.environ, **HOST_AND_KEY),
    }[place]()

    assert (error.what == "the connection to Kubernetes cannot be set up"
            and SECRET not in repr(error.as_result()))


@pytest.mark.parametrize("option", ["ca_cert", "client_cert", "client_key"])
@pytest.mark.parametrize("pem",
                         [f"-----BEGIN PRIVATE KEY-----\n{SECRET}",
                          f"-----BEGIN PRIVATE KEY-----{SECRET}"])
def test_content_in_place_of_a_path_is_not_shown(option, pem):
    error = error_of(**HOST_AND_KEY, **{option: pem})
    user = {"exec": {"command": "false", "apiVersion": "v1", "provideClusterInfo": True}}
    assert error_of(kubeconfig=config(user=user), **{option: pem}).what == error.what

    assert error.what == f"{option} must be the path of a file in PEM format, not its content"
    assert pem in connection.secrets({option: pem})


@pytest.mark.parametrize("kubeconfig", [
    SECRET * 10, base64.b64encode(f"apiVersion: v1\ntoken: {SECRET}".encode()).decode()[:-3] + "!",
    f"- {SECRET}\n- x\n",
    "[" * 5000 + SECRET + "\n"], ids=["token", "invalid base64", "list", "deep nesting"])
def test_invalid_kubeconfig_content_is_not_shown(kubeconfig):
    error = error_of(kubeconfig=kubeconfig)

    assert ("kubeconfig is" in error.what and kubeconfig not in repr(error.as_result())
            and SECRET not in repr(error.as_result()))
    assert kubeconfig in connection.secrets({"kubeconfig": kubeconfig})
