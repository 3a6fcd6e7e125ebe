"""The settings of notices to owners of idle work, beside the Events on their objects."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from autopilot.service.settings_fields import Section, is_this_machine

MailAddress = Annotated[str, Field(pattern=r"^[^@\s<>,;:\"]+@[^@\s<>,;:\"]+$", max_length=254)]


class SlackNotices(Section):
    """An incoming webhook of Slack, or one that takes the same JSON (Mattermost, Rocket.Chat)."""

    webhook_file: Path = Field(description="file with its address, which is a secret")


class MailNotices(Section):
    """Mail to the people of a queue. Tenants cannot choose a recipient."""

    host: str = Field(min_length=1, description="mail server")
    port: int = Field(587, ge=1, le=65535, description="its port")
    starttls: bool = Field(True, description="encrypt with STARTTLS; a server that does not offer it gets nothing")
    ca_file: Path | None = Field(None, description="authorities of its certificate (PEM); null: public ones")
    user: str | None = Field(None, description="user of the server; null: none")
    password_file: Path | None = Field(None, description="file with the password of the user")
    sender: MailAddress = Field(description="address in From")
    recipients: dict[str, MailAddress] = Field(
        default_factory=dict, description="queue -> address; it counts for the queues below it too"
    )
    default: MailAddress | None = Field(None, description="address for all other queues; null: they get no mail")

    @model_validator(mode="after")
    def _usable(self) -> MailNotices:
        if (self.user is None) != (self.password_file is None):
            raise ValueError("user and password_file belong together; give both or none")
        if self.user is not None and not self.starttls and not is_this_machine(self.host):
            raise ValueError("a password needs starttls; set it to true")
        if not self.recipients and self.default is None:
            raise ValueError("nothing has an address; give recipients or default")
        return self


class Notices(Section):
    """Further ways for notices to owners of idle work."""

    slack: SlackNotices | None = Field(None, description="a webhook of Slack's shape")
    mail: MailNotices | None = Field(None, description="mail")
