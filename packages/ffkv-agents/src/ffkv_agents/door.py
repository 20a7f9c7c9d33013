"""What agents add to ffkv, see `ffkv.base.doors`."""

from ffkv.base.doors import Command

MCP = Command("Ask a finished run", "ffkv_agents.commands:mcp", "Answer an agent's questions about finished runs.")
