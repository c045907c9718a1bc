"""From a request to the reply it gets: the first rule that holds, and the next reply of the script it plays."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import partial
from random import Random

from pydantic import BaseModel

from dshd.capabilities.llm import FailureCode

from .config import LlmScripted, Rule
from .memory import Counts
from .question import Question
from .reply import Fail, Reply
from .template import expand
from .when import Match


@dataclass(frozen=True, slots=True)
class Choice:
    """The reply to a request, with all that its templates may use."""

    reply: Reply
    match: Match
    question: Question
    number: int

    def fill(self, text: str) -> str:
        """A template of the reply, completed."""
        return expand(text, self._value)

    def _value(self, name: str) -> str:
        request, result = self.question.request, self.match.result
        match name:
            case "user":
                return self.question.user
            case "tool":
                return "" if result is None else result.tool
            case "tool_result":
                return "" if result is None else result.text
            case "route":
                return request.provider
            case "model":
                return request.model
            case "effort":
                return request.reasoning_effort or ""
            case "tools":
                return ", ".join(tool.name for tool in request.tools)
            case "turn":
                return str(self.question.turn)
            case "count":
                return str(self.number)
            case "replay":
                return self.question.replay
            case _:
                return self.match.groups[name]


class Rules:
    """The rules of one config. Positions are counted under the content of rule or script: changed ones begin anew."""

    def __init__(self, config: LlmScripted) -> None:
        self._config = config
        self._rules = [(rule, f"rule {_digest(rule)}") for rule in config.rules]
        self._scripts = {name: f"script {name} {_digest(script)}" for name, script in config.scripts.items()}

    def choose(self, question: Question, counts: Counts, number: int) -> Choice | None:
        """The choice for the request of this number, counted as made; `None` if no rule holds."""
        for rule, key in self._rules:
            if rule.times is not None and counts.get(key, 0) >= rule.times:
                continue
            luck = partial(_luck, self._config.seed, question.conversation, number, key)
            match = rule.when.match(question, number, luck)
            reply = None if match is None else self._reply(rule, counts)
            if match is not None and reply is not None:
                if rule.times is not None:
                    counts[key] = counts.get(key, 0) + 1
                return Choice(reply, match, question, number)
        return None

    def _reply(self, rule: Rule, counts: Counts) -> Reply | None:
        if rule.script is None:
            return rule
        script, key = self._config.scripts[rule.script], self._scripts[rule.script]
        position, length = counts.get(key, 0), len(script.replies)
        if position >= length:
            match script.at_end:
                case "loop":
                    position %= length
                case "stay":
                    position = length - 1
                case "pass":
                    return None
                case "fail":
                    message = f"script {rule.script!r} has ended after its {length} replies"
                    return Reply(fail=Fail(code=FailureCode.INVALID_REQUEST, message=message))
        counts[key] = counts.get(key, 0) + 1
        return script.replies[position]


def _luck(*source: object) -> float:
    return Random(repr(source)).random()


def _digest(model: BaseModel) -> str:
    data = json.dumps(model.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(data.encode()).hexdigest()[:16]
