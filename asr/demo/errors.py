"""Why a request is not answered as it was meant."""

from __future__ import annotations

from http import HTTPStatus


class Refused(Exception):
    """A request that is refused; the message is shown on the page.

    Attributes:
        status: of the answer.
    """

    def __init__(self, status: HTTPStatus, message: str) -> None:
        self.status = status
        super().__init__(message)
