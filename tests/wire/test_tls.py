"""TLS on both sides: names, authorities, certificates of our own, and files that change (O-33)."""

from __future__ import annotations

import datetime
import shutil
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from proxy.core.http import Answered, MaybeSent, NotSent, NotSentReason, WireRequest
from proxy.wire.connect import Address
from proxy.wire.tls import (
    LOOK_S,
    FreshContext,
    ResumingContext,
    TlsFiles,
    TlsFilesUnusable,
    client_context,
    server_context,
)

from .conftest import Bench, saying
from .peers import Close, Hang, RawCaller, RawPlatform, Script, Send, When, answer

PAYMENT = WireRequest(b"POST", b"/v1/payments", ((b"Host", b"anything.example"),), b"{}")
GET = b"GET /a HTTP/1.1\r\nHost: sut.test\r\n\r\n"
BEGAN = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.cert = self._signed(self.name, self.key.public_key(), is_authority=True, host=None, days=36_500)
        self.file = str(folder / f"{name}.pem")
        Path(self.file).write_bytes(self.cert.public_bytes(serialization.Encoding.PEM))

    def issue(self, host: str, *, days: int = 36_500, at: str | None = None) -> TlsFiles:
        """A certificate for `host` and its key, as files."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        cert = self._signed(subject, key.public_key(), is_authority=False, host=host, days=days)
        stem = self.folder / (at or host)
        cert_file, key_file = stem.with_suffix(".crt"), stem.with_suffix(".key")
        cert_file.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return TlsFiles(cert_file=str(cert_file), key_file=str(key_file))

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        *,
        is_authority: bool,
        host: str | None,
        days: int,
    ) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(BEGAN)
            .not_valid_after(BEGAN + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if host is not None:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        return builder.sign(self.key, hashes.SHA256())


def spoil(files: TlsFiles) -> None:
    """Put nonsense where the certificate was."""
    Path(files.cert_file or "").write_text("nonsense")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def looked_up(platform: RawPlatform) -> list[Address]:
    return [(2, ("127.0.0.1", platform.port))]


class Dialled:
    """An upstream to `https://u.test`, which is the given platform."""

    def __init__(self, bench: Bench, platform: RawPlatform, tls: TlsFiles, name: str = "u.test") -> None:
        async def look_up(_host: str, _port: int) -> list[Address]:
            return looked_up(platform)

        self.upstream = bench.upstream(f"https://{name}:{platform.port}", tls=tls, look_up=look_up)

    async def send(self) -> Answered | NotSent | MaybeSent:
        return await self.upstream.send(PAYMENT, timeout_ms=5_000)


async def test_name_is_the_urls_whatever_the_caller_says(bench: Bench, authority: Authority) -> None:
    names: list[str | None] = []
    context = server_context(authority.issue("u.test"))
    context.sni_callback = lambda _sock, name, _context: names.append(name)
    platform = await bench.platform(tls=context)
    dialled = Dialled(bench, platform, TlsFiles(ca_file=authority.file))
    for _ in range(3):
        assert isinstance(await dialled.send(), Answered)
    assert names == ["u.test"]
    assert platform.received[0].header(b"host") == [b"u.test:%d" % platform.port]
    assert len(platform.streams) == 1


async def test_wrong_name_is_not_sent(bench: Bench, authority: Authority) -> None:
    platform = await bench.platform(tls=server_context(authority.issue("wrong.test")))
    result = await Dialled(bench, platform, TlsFiles(ca_file=authority.file)).send()
    assert isinstance(result, NotSent)
    assert result.reason is NotSentReason.CERTIFICATE
    assert "u.test" in result.detail
    assert platform.hits == 0


async def test_unknown_authority_is_not_sent(bench: Bench, authority: Authority) -> None:
    platform = await bench.platform(tls=server_context(authority.issue("u.test")))
    result = await Dialled(bench, platform, TlsFiles()).send()
    assert isinstance(result, NotSent)
    assert result.reason is NotSentReason.CERTIFICATE


async def test_expired_certificate_is_not_sent(bench: Bench, authority: Authority) -> None:
    platform = await bench.platform(tls=server_context(authority.issue("u.test", days=1)))
    result = await Dialled(bench, platform, TlsFiles(ca_file=authority.file)).send()
    assert isinstance(result, NotSent)
    assert result.reason is NotSentReason.CERTIFICATE
    assert "expired" in result.detail


async def test_unverified_certificate_is_taken_when_asked_to(bench: Bench, authority: Authority) -> None:
    platform = await bench.platform(tls=server_context(authority.issue("wrong.test")))
    assert isinstance(await Dialled(bench, platform, TlsFiles(verify=False)).send(), Answered)


async def test_plain_platform_behind_an_https_url_is_not_sent(bench: Bench) -> None:
    platform = await bench.platform(Script(Send(b"HTTP/1.1 400 Bad\r\n\r\n"), Close(), when=When.BYTE))
    result = await Dialled(bench, platform, TlsFiles()).send()
    assert isinstance(result, NotSent)
    assert result.reason is NotSentReason.TLS


async def test_platform_that_closes_inside_the_handshake_is_not_sent(bench: Bench) -> None:
    platform = await bench.platform(Script(Close(), when=When.BYTE))
    result = await Dialled(bench, platform, TlsFiles()).send()
    assert isinstance(result, NotSent)
    assert result.reason is NotSentReason.TLS


async def test_handshake_that_hangs_is_not_sent(bench: Bench) -> None:
    platform = await bench.platform(Script(Hang(), when=When.BYTE))
    upstream = bench.upstream(platform.url.replace("http:", "https:"), connect_timeout_ms=30)
    result = await upstream.send(PAYMENT, timeout_ms=5_000)
    assert isinstance(result, NotSent)
    assert result.reason is NotSentReason.CONNECT_TIMEOUT
    assert upstream.pool.connections_open == 0


async def test_platform_that_asks_for_our_certificate_gets_it(bench: Bench, authority: Authority) -> None:
    mine = authority.issue("merchant.test")
    theirs = authority.issue("u.test")
    platform = await bench.platform(
        tls=server_context(TlsFiles(authority.file, theirs.cert_file, theirs.key_file))
    )
    ours = TlsFiles(authority.file, mine.cert_file, mine.key_file)
    assert isinstance(await Dialled(bench, platform, ours).send(), Answered)
    without = await Dialled(bench, platform, TlsFiles(ca_file=authority.file)).send()
    assert not isinstance(without, Answered)
    assert platform.hits == 1


async def test_answer_cut_by_a_close_is_maybe_sent_over_tls_too(bench: Bench, authority: Authority) -> None:
    platform = await bench.platform(
        Script(Send(answer(201, b"x", length=9)), Close()), tls=server_context(authority.issue("u.test"))
    )
    result = await Dialled(bench, platform, TlsFiles(ca_file=authority.file)).send()
    assert isinstance(result, MaybeSent)
    assert result.status == 201


async def test_rotated_client_certificate_is_used_for_new_connections(
    bench: Bench, authority: Authority
) -> None:
    theirs = authority.issue("u.test")
    platform = await bench.platform(
        Script(Send(answer(200, b"ok", (b"Connection", b"close")))),
        tls=server_context(TlsFiles(authority.file, theirs.cert_file, theirs.key_file)),
    )
    mine = authority.issue("first.test", at="mine")
    dialled = Dialled(bench, platform, TlsFiles(authority.file, mine.cert_file, mine.key_file))
    assert isinstance(await dialled.send(), Answered)
    authority.issue("second.test", at="mine")
    assert isinstance(await dialled.send(), Answered)
    subjects = [_common_name(stream.writer.get_extra_info("peercert")) for stream in platform.streams]
    assert subjects == ["first.test", "second.test"]


def _common_name(cert: dict[str, tuple[tuple[tuple[str, str], ...], ...]]) -> str:
    return next(value for part in cert["subject"] for key, value in part if key == "commonName")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
async def test_session_is_used_again_for_the_next_connection(
    bench: Bench, authority: Authority, version: ssl.TLSVersion
) -> None:
    context = server_context(authority.issue("u.test"))
    context.maximum_version = version
    assert await resumptions(bench, authority, context, calls=3) == [False, True, True]


async def resumptions(
    bench: Bench, authority: Authority, server: ssl.SSLContext, *, calls: int
) -> list[bool]:
    """For each call to a platform that ends every connection, whether its session was resumed."""
    platform = await bench.platform(
        Script(Send(answer(200, b"ok", (b"Connection", b"close"))), Close()), tls=server
    )
    dialled = Dialled(bench, platform, TlsFiles(ca_file=authority.file))
    for _ in range(calls):
        assert isinstance(await dialled.send(), Answered)
    return [stream.writer.get_extra_info("ssl_object").session_reused for stream in platform.streams]


class Watched(ssl.SSLObject):
    """Counts how often a connection is asked for its session, which Python loses some memory to each time."""

    looks = 0

    @property
    def session(self) -> ssl.SSLSession | None:  # type: ignore[override]  # nobody sets it
        Watched.looks += 1
        return super().session


@pytest.mark.parametrize("tickets", [2, 0], ids=["resumes", "never resumes"])
async def test_session_is_not_asked_for_at_each_connection(
    bench: Bench, authority: Authority, tickets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python before 3.12.8 and 3.13.1 gives no byte of it back, and a platform may end each connection (H10)."""
    context = server_context(authority.issue("u.test"))
    context.num_tickets = tickets
    monkeypatch.setattr(Watched, "looks", 0)
    monkeypatch.setattr(ResumingContext, "sslobject_class", Watched)
    reused = await resumptions(bench, authority, context, calls=5)
    assert reused == [False] + [tickets > 0] * 4
    assert Watched.looks == 1


def shaken(client: ssl.SSLContext, server: ssl.SSLContext) -> ssl.SSLObject:
    """The client's end of a connection between the two, on which a byte has come back."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server, server_hostname="u.test")
    far = server.wrap_bio(to_server, to_client, server_side=True)
    for end in (near, far, near, far):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    far.write(b"x")
    assert near.read(1) == b"x"
    return near


def test_session_that_no_longer_serves_is_replaced_a_while_later(authority: Authority) -> None:
    client = client_context(TlsFiles(ca_file=authority.file))
    assert isinstance(client, ResumingContext)
    files = authority.issue("u.test")
    before, restarted = server_context(files), server_context(files)
    client.remember(shaken(client, before), now_s=1_000)
    assert shaken(client, before).session_reused
    for now_s, is_reused in ((1_001, False), (1_000 + LOOK_S, True)):
        refused = shaken(client, restarted)
        assert not refused.session_reused
        client.remember(refused, now_s=now_s)
        assert shaken(client, restarted).session_reused is is_reused


async def test_session_does_not_outlive_the_authorities_it_was_verified_with(
    bench: Bench, authority: Authority, tmp_path: Path
) -> None:
    context = server_context(authority.issue("u.test"))
    platform = await bench.platform(
        Script(Send(answer(200, b"ok", (b"Connection", b"close"))), Close()), tls=context
    )
    trusted = tmp_path / "trusted.pem"
    shutil.copy(authority.file, trusted)
    dialled = Dialled(bench, platform, TlsFiles(ca_file=str(trusted)))
    assert isinstance(await dialled.send(), Answered)
    shutil.copy(Authority(tmp_path, "other").file, trusted)
    refused = await dialled.send()
    assert isinstance(refused, NotSent)
    assert refused.reason is NotSentReason.CERTIFICATE


async def test_listener_serves_tls_and_follows_its_files(bench: Bench, authority: Authority) -> None:
    files = authority.issue("first.test", at="listener")
    listener = await bench.listener(saying(b"here"), tls=files)
    trusting = client_context(TlsFiles(ca_file=authority.file))
    async with await RawCaller.dial(listener.address, tls=trusting, name="first.test") as caller:
        for _ in range(2):
            await caller.send(GET)
            assert (await caller.answer()).body == b"here"
        authority.issue("second.test", at="listener")
        async with await RawCaller.dial(listener.address, tls=trusting, name="second.test") as later:
            await later.send(GET)
            assert (await later.answer()).body == b"here"
        spoil(files)
        async with await RawCaller.dial(listener.address, tls=trusting, name="second.test") as last:
            await last.send(GET)
            assert (await last.answer()).body == b"here"
        await caller.send(GET)
        assert (await caller.answer()).body == b"here"
    (error,) = bench.errors
    assert "listener.crt" in str(error)


async def test_tls_caller_that_asks_for_close_is_closed(bench: Bench, authority: Authority) -> None:
    listener = await bench.listener(saying(b"hello"), tls=authority.issue("l.test"))
    trusting = client_context(TlsFiles(ca_file=authority.file))
    async with await RawCaller.dial(listener.address, tls=trusting, name="l.test") as caller:
        await caller.send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert (await caller.to_end()).endswith(b"hello")


async def test_tls_caller_gets_a_large_answer_whole(bench: Bench, authority: Authority) -> None:
    big = bytes(range(256)) * 40_000
    listener = await bench.listener(saying(big), tls=authority.issue("l.test"))
    trusting = client_context(TlsFiles(ca_file=authority.file))
    async with await RawCaller.dial(listener.address, tls=trusting, name="l.test") as caller:
        for _ in range(2):
            await caller.send(GET)
            assert (await caller.answer()).body == big


async def test_early_refusal_reaches_a_tls_caller_that_is_sending(bench: Bench, authority: Authority) -> None:
    listener = await bench.listener(saying(), tls=authority.issue("l.test"))
    trusting = client_context(TlsFiles(ca_file=authority.file))
    async with await RawCaller.dial(listener.address, tls=trusting, name="l.test") as caller:
        await caller.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 100_000)
        assert (await caller.answer()).status == 413


def test_tls_is_1_2_or_later(authority: Authority) -> None:
    assert client_context(TlsFiles()).minimum_version is ssl.TLSVersion.TLSv1_2
    assert server_context(authority.issue("x.test")).minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("which", ["authority", "certificate", "key"])
@pytest.mark.parametrize("content", [None, "nonsense"])
def test_unusable_file_is_named(authority: Authority, which: str, content: str | None) -> None:
    good = authority.issue("u.test")
    bad = authority.folder / "bad.pem"
    if content is not None:
        bad.write_text(content)
    files = TlsFiles(
        ca_file=str(bad) if which == "authority" else authority.file,
        cert_file=str(bad) if which == "certificate" else good.cert_file,
        key_file=str(bad) if which == "key" else good.key_file,
    )
    with pytest.raises(TlsFilesUnusable, match=r"bad\.pem"):
        client_context(files)


def test_encrypted_key_asks_for_nothing_on_the_terminal(authority: Authority) -> None:
    good = authority.issue("u.test")
    key = serialization.load_pem_private_key(Path(good.key_file or "").read_bytes(), None)
    Path(good.key_file or "").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(TlsFilesUnusable, match=r"u\.key"):
        server_context(good)


def test_listener_without_a_certificate_is_refused() -> None:
    with pytest.raises(TlsFilesUnusable, match="needs a certificate"):
        server_context(TlsFiles())


def test_session_secrets_are_not_written_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    assert client_context(TlsFiles()).keylog_filename is None


def test_bad_replacement_is_reported_once_and_the_old_files_stay(authority: Authority) -> None:
    errors: list[BaseException] = []
    files = authority.issue("u.test")
    fresh = FreshContext(files, server_context, errors.append)
    first = fresh.current()
    spoil(files)
    assert fresh.current() is first
    assert fresh.current() is first
    assert len(errors) == 1
    authority.issue("u.test")
    assert fresh.current() is not first
