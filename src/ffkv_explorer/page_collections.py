"""Lists of memories and notes: their page, and what keeps them. Other pages show them beside a memory."""

from starlette.responses import HTMLResponse, RedirectResponse, Response

from ffkv.base.errors import UserError
from ffkv.run.results.collections import STARRED, Kept, append_event, members, read_kept
from ffkv.run.results.memory_name import memory_name
from ffkv_explorer.pages import LIVE, error_page, read_form, render
from ffkv_explorer.shelf import Held


def read(held: Held) -> Kept:
    """Reads what people keep of a run: the stars first, then lists by name.

    What cannot be read is among the lines that are `torn`, and no error: the page shows all else.
    """
    try:
        kept = read_kept(held.run.files)
    except UserError as error:
        return Kept({}, {}, [str(error)])
    lists = {name: kept.lists[name] for name in sorted(kept.lists, key=lambda name: (name != STARRED, name))}
    return kept._replace(lists=lists)


def overview(held: Held) -> HTMLResponse:
    """Returns the page of all lists and notes of a run."""
    return render("collections.html", held=held, sends=True, kept=read(held))


def keep(held: Held, body: bytes) -> Response:
    """Keeps what a form sends, and leads to the page that shows it.

    The field `action` says what to do: "add" memories to the list `collection` or "remove" them, "delete" the list,
    "rename" it, or keep the `text` of a "note". `back` is the page to go back to: a memory, or "" for the lists.
    """
    files = held.run.files
    try:
        sent = read_form(body)
        action, collection = sent.get("action", ""), sent.get("collection", "").strip()
        named = [memory_name(*held.place(name)) for name in sent.getlist("memory")]
        if action == "delete":
            append_event(files, "remove", collection=collection, memories=[*members(files, collection)])
        elif action == "rename":
            append_event(files, "rename", collection=collection, to=sent.get("to", "").strip())
        elif not named:
            raise UserError("No memory is ticked. Go back, and tick those that you want to keep.")
        elif action == "note":
            append_event(files, "note", memories=named, text=sent.get("text", ""))
        else:
            append_event(files, action, collection=collection, memories=named)
    except (UserError, ValueError) as error:
        return error_page(400, "This cannot be kept", str(error))
    if back := sent.get("back"):
        return RedirectResponse(LIVE.memory(held, *held.place(back)) + "#lists", 303)
    if action == "add":
        return RedirectResponse(LIVE.run(held, "memories", collection=collection), 303)
    return RedirectResponse(LIVE.run(held, "collections"), 303)
