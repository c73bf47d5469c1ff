// Package host connects fleetd to MCP servers that are not boards: plug-ins, which it runs as
// programs or reaches by Streamable HTTP, and endpoints, which connect to it by WebSocket. Each
// is a device of the fleet: the host delivers calls to it, lists its tools and reports its
// presence, as package broker does for boards. It also carries what boards do not have: prompts,
// resources, progress, log messages and cancellation.
//
// The go-sdk speaks MCP. The host bounds what it reads: a message of a program has a maximum
// size, lines that are no messages go to the log, and lists end at a limit. A server that asks
// for sampling or elicitation is refused, as fleetd has no model and no user for it.
//
// Each unit has at most one session. [Host.Run] applies the wanted plug-ins on one goroutine;
// each plug-in has one goroutine that starts its program again when it ends, and each session
// one that watches it. A lock guards the units, and one in each session its queue.
package host
