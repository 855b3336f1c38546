"""A server that asks for credentials or speaks TLS, over real HTTP and TLS."""

from __future__ import annotations

import logging

import pytest
import trustme

from heterotrain_operator.metrics.credentials import BasicAuth, BearerToken, Credentials
from heterotrain_operator.metrics.prometheus import ANSWERS_WRONGLY, REFUSES, UNTRUSTED
from unit.metrics.samples import matrix, problem, read, scrape, source
from unit.metrics.servers import Script, serving

TOKEN = "s3cret-token"


@pytest.mark.parametrize(
    ("credentials", "header"),
    [
        (BearerToken(TOKEN), f"Bearer {TOKEN}"),
        (BearerToken(f"{TOKEN}\n"), f"Bearer {TOKEN}"),
        (BasicAuth("Aladdin", "open sesame"), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),  # the example of RFC 7617
        (BasicAuth("Aladdin\n", "open sesame\r\n"), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),
    ],
)
def test_server_that_asks_for_credentials_gets_them(
    url: str, script: Script, credentials: Credentials, header: str
) -> None:
    script.authorization = header
    script.answer = matrix(*scrape(-1))
    assert read(url, credentials=credentials) is not None


@pytest.mark.parametrize("credentials", [None, BearerToken("wrong")])
def test_credentials_that_are_wrong_or_absent_are_told_of(
    url: str, script: Script, credentials: Credentials | None
) -> None:
    script.authorization = f"Bearer {TOKEN}"
    assert problem(url, credentials=credentials) == REFUSES


def test_no_secret_is_in_any_text(url: str, script: Script, caplog: pytest.LogCaptureFixture) -> None:
    script.status = 403
    caplog.set_level(logging.DEBUG)
    for credentials in (BearerToken(TOKEN), BasicAuth("me", TOKEN)):
        assert TOKEN not in repr(credentials)
        assert TOKEN not in problem(url, credentials=credentials)
    with pytest.raises(ValueError, match="bearer token") as caught:
        source(url, credentials=BearerToken(f"{TOKEN}\nX-Forged: 1"))
    assert TOKEN not in str(caught.value)
    assert TOKEN not in caplog.text
    assert "HTTP status 403" in caplog.text


@pytest.mark.parametrize("credentials", [BearerToken(""), BearerToken("a b"), BearerToken("ü"), BasicAuth("a:b", "c")])
def test_credentials_that_no_header_can_hold_are_refused(credentials: Credentials) -> None:
    with pytest.raises(ValueError, match=r"bearer token|colon"):
        source("http://127.0.0.1:9090", credentials=credentials)


def test_redirects_are_not_followed_and_not_told_of(url: str, script: Script) -> None:
    elsewhere = Script(answer=matrix())
    with serving(elsewhere) as other:
        script.status, script.headers = 307, {"Location": f"{other}/api/v1/query"}
        assert problem(url, credentials=BearerToken(TOKEN)) == ANSWERS_WRONGLY
    assert elsewhere.asked == []


def pem(authority: trustme.CA) -> str:
    return authority.cert_pem.bytes().decode()


def test_certificate_of_the_given_authority_is_trusted_and_of_no_other(script: Script) -> None:
    authority = trustme.CA()
    script.answer = matrix(*scrape(-1))
    with serving(script, authority) as url:
        assert read(url, ca_pem=pem(authority)) is not None
        assert problem(url, ca_pem=pem(trustme.CA())) == UNTRUSTED
        assert problem(url) == UNTRUSTED
        assert problem(url.replace("127.0.0.1", "localhost"), ca_pem=pem(authority)) == UNTRUSTED


def test_https_to_a_server_without_it_is_a_wrong_answer(url: str) -> None:
    assert problem(url.replace("http:", "https:"), ca_pem=pem(trustme.CA())) == ANSWERS_WRONGLY


@pytest.mark.parametrize("ca_pem", ["", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_authority_that_is_none_is_refused(ca_pem: str) -> None:
    with pytest.raises(ValueError, match="no PEM certificate"):
        source("https://127.0.0.1", ca_pem=ca_pem)
