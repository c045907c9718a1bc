"""The model that answers where no rule does: it repeats what was said, and can be asked to show what models do."""

from __future__ import annotations

import json
import re

from dshd.capabilities.llm import FailureCode
from dshd.capabilities.values import text_of

from .question import Question
from .reply import Call, Fail, Reply

_CALL = re.compile(r"^[ \t]*call[ \t]+([\w.:/-]+)[ \t]*(?=\{|$)", re.MULTILINE | re.IGNORECASE)
_COUNT = re.compile(r"^\s*count to (\d{1,4})\b", re.IGNORECASE)
_FAIL = re.compile(r"^\s*fail(?:\s+([A-Z_]+))?\s*$", re.IGNORECASE)
_DECODER = json.JSONDecoder()

STEP = 0.2
"""Between two numbers when it counts: slow enough to be interrupted."""


def answer(question: Question) -> Reply:
    """What it answers. The texts are no templates."""
    match question.request.purpose:
        case "compaction":
            return Reply(say=_summary(question))
        case "session-title":
            return Reply(say=" ".join(question.user.split()[:6]) or "Empty conversation")
    think = None
    if question.highest:
        words = len(question.user.split())
        think = f"That was {words} words, in turn {question.turn}. The effort is high, so I think before I answer."
    if question.results:
        told = [
            f"{result.tool} {'failed' if result.error else 'answered'}: {result.text}" for result in question.results
        ]
        also = [f"And you said: {question.user}"] if question.spoken else []
        return Reply(think=think, say="\n".join([*told, *also]))
    if not question.spoken:
        return Reply(think=think, say="Nothing new was said.")
    if counted := _COUNT.match(question.user):
        numbers = [f"{number}".rjust(5) for number in range(1, int(counted[1]) + 1)]
        return Reply(think=think, say="".join(numbers), pace=STEP, chunk=5)
    if failing := _FAIL.match(question.user):
        code = (failing[1] or FailureCode.PROVIDER).upper()
        return Reply(think=think, fail=Fail(code=code, message="you asked me to fail"))
    calls = _calls(question)
    if calls:
        return Reply(think=think, say="As you say.", call=calls)
    return Reply(think=think, say=_words(question))


def _calls(question: Question) -> tuple[Call, ...]:
    """The tool calls it is asked for, a line of `call NAME {…}` each. Without arguments the tool must be on offer."""
    offered = {tool.name for tool in question.request.tools}
    text, found, position = question.user, [], 0
    while asked := _CALL.search(text, position):
        name, position = asked[1], asked.end()
        if text.startswith("{", position):
            try:
                _, end = _DECODER.raw_decode(text, position)
            except (ValueError, RecursionError):
                end = len(text)  # as broken as it was said, for whoever runs the tool to find out
            found.append(Call(tool=name, raw=text[position:end]))
            position = end
        elif name in offered:
            found.append(Call(tool=name))
    return tuple(found)


def _words(question: Question) -> str:
    said = f"You said: {question.user}"
    if question.turn > 1:
        read = len(question.request.messages)
        return f"{said}\n\nThis is turn {question.turn}, and I have read {read} messages."
    tools = ", ".join(tool.name for tool in question.request.tools) or "none"
    return (
        f"{said}\n\nI am the model that is built into dshd. I need no key and know nothing, but I can show you what "
        f"models do. Write one of these:\n"
        f'- call NAME {{"some": "arguments"}} makes me call a tool. I am offered: {tools}.\n'
        f"- count to 50 makes me slow, so that you can cancel me, or edit the configuration while I answer.\n"
        f"- fail RATE_LIMITED makes the call fail with that code.\n"
        f"At the highest reasoning effort I think before I answer."
    )


def _summary(question: Question) -> str:
    messages = question.request.messages
    texts = [text for message in messages if (text := text_of(message.content).strip())]
    first, last = (texts[0], texts[-1]) if texts else ("nothing", "nothing")
    return f"Summary of {len(messages)} messages. It began with: {first[:200]}\nIt came last to: {last[:200]}"
