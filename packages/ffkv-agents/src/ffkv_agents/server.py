"""Speaks the Model Context Protocol on standard input and output. Questions are answered one after the other."""

import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import anyio
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from ffkv.base.errors import UserError
from ffkv.base.fault import explain
from ffkv.base.process.runtime import torch_with
from ffkv.base.settings import Section, section
from ffkv.base.terminal import plain
from ffkv.base.version import version
from ffkv.run.results.run import Run
from ffkv.run.results.run_files import unknown
from ffkv.run.results.search import Search
from ffkv.run.trace.settings import GraphOptions, TraceOptions
from ffkv.workflow import ROOT
from ffkv_agents import files, model
from ffkv_agents.written import TOOLS, Answer, arguments, write

SECONDS = 50.0  # until there is an answer: many clients wait for 60
LONGEST = 60_000  # characters of a question: 200 prompts of 300
TOLD = 2000  # characters of a refusal
SCHEME = "ffkv://docs/"  # of the addresses of pages


_TOOLS = (files.describe_run, files.verdicts, files.search_memories, files.memory, model.trace, model.graph)
ANSWERS: dict[str, Callable[..., Answer]] = {tool.__name__: tool for tool in (*_TOOLS, model.behaviour, files.compare)}
# What the functions of Python take that these tools call.
EXTENDED: dict[str, type[Section]] = {"search_memories": Search, "trace": TraceOptions, "graph": GraphOptions}
TAKES = {name: arguments(name, EXTENDED.get(name, Section)) for name in ANSWERS}


class Desk:
    """Answers questions about open runs. What takes too long goes on, and is there when it is asked again."""

    def __init__(self, runs: Mapping[str, Run], threads: int):
        self.runs, self.threads = runs, threads
        self.pages = {path.name: path for path in sorted(ROOT.glob("docs/*.md"))}
        self.one, self.begun = ThreadPoolExecutor(1), dict[str, Future[str]]()

    def answer(self, name: str, given: dict[str, Any]) -> str:
        """Returns the answer of a tool as JSON. Raises UserError: no such tool or run; or see `ffkv_agents.files` and `model`."""
        if name not in ANSWERS:
            raise unknown("tool", name, [*ANSWERS])
        asked: Any = section(TAKES[name], **given)
        wanted = [asked.run or next(iter(self.runs)), *([asked.other_run] if name == "compare" else [])]
        if strange := [each for each in wanted if each not in self.runs]:
            raise unknown("open run", strange[0], [*self.runs])
        runs = [self.runs[each] for each in wanted]
        if ANSWERS[name].__module__ == model.__name__:
            torch_with(self.threads)  # what it says of gradients holds for one thread alone
        facts, tables = ANSWERS[name](*runs, asked)
        return write(name, asked, ({"run": runs[0].name, "by_chance": 1 / runs[0].anatomy.vocabulary, **facts}, tables))

    async def ask(self, name: str, given: dict[str, Any]) -> str:
        """Returns the answer, see `answer`. Raises UserError, too, if it takes longer than `SECONDS`."""
        if len(key := json.dumps([name, given], sort_keys=True)) > LONGEST:
            raise UserError(f"The question has {len(key):,} characters. At most {LONGEST:,} are read: ask for less.")
        future = self.begun[key] = self.begun.get(key) or self.one.submit(self.answer, name, given)
        try:
            return await anyio.to_thread.run_sync(future.result, SECONDS, abandon_on_cancel=True)
        except TimeoutError:
            if future.done():
                raise
            told = "Another question is still being answered" if future.cancel() else "This takes long, and goes on"
            raise UserError(f"{told}. Ask the same again in a minute.") from None
        finally:
            if future.done():
                self.begun.pop(key, None)

    async def list_tools(self, *_: Any) -> types.ListToolsResult:
        """Lists the tools."""
        hints, tools = types.ToolAnnotations(read_only_hint=True), []
        for name, takes in TAKES.items():
            schema = takes.model_json_schema()
            for each in schema["properties"].values():
                each.pop("title", None), each.pop("examples", None)  # which are for a form
            about = TOOLS[name]["about"]
            tools.append(types.Tool(name=name, description=about, input_schema=schema, annotations=hints))
        return types.ListToolsResult(tools=tools)

    async def call_tool(self, _: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        """Answers a question; a refusal is a sentence."""
        try:
            text, wrong = await self.ask(params.name, params.arguments or {}), False
        except Exception as error:
            text, wrong = plain(explain(error)[0])[:TOLD], True
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=wrong)

    async def list_resources(self, *_: Any) -> types.ListResourcesResult:
        """Lists the pages of the documentation."""
        return types.ListResourcesResult(
            resources=[types.Resource(uri=SCHEME + name, name=name, mime_type="text/markdown") for name in self.pages]
        )

    async def read_resource(self, _: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        """Reads a page. What stands behind a # is passed over."""
        name = params.uri.removeprefix(SCHEME).partition("#")[0]
        if name not in self.pages:
            raise MCPError(types.INVALID_PARAMS, plain(str(unknown("page", name, [*self.pages])))[:TOLD])
        page = types.TextResourceContents(uri=params.uri, text=self.pages[name].read_text(encoding="utf-8"))
        return types.ReadResourceResult(contents=[page])


def serve(runs: Mapping[str, Run], threads: int) -> None:
    """Serves open runs until standard input ends. What is printed meanwhile goes to standard error."""
    desk, told = Desk(runs, threads), f"{TOOLS['instructions']} Open runs: {', '.join(runs)}."
    answers = {
        f"on_{name}": getattr(desk, name) for name in ("list_tools", "call_tool", "list_resources", "read_resource")
    }
    server = Server("ffkv", version=version(), instructions=told, **answers)

    async def run() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    anyio.run(run)
