package sim

import (
	"context"
	"strconv"
	"strings"
)

// onMCP implements McpServer::ParseMessage (4.1). Messages that it drops get no answer at all.
func (d *Device) onMCP(conn serverConn, msg value) {
	method, params, id := msg.field("method"), msg.field("params"), msg.field("id")
	if !msg.isObject() || msg.field("jsonrpc").text() != "2.0" || !method.isString() {
		d.stats().dropped.Add(1)
		return
	}
	if strings.HasPrefix(method.text(), "notifications") {
		return
	}
	if params != nil && !params.isObject() || !id.isNumber() {
		d.stats().dropped.Add(1)
		return
	}
	switch name := method.text(); name {
	case "initialize":
		d.initialize(id.number(), params)
	case "tools/list":
		d.listTools(id.number(), params)
	case "tools/call":
		if d.faults.has(FaultDrop) {
			conn.Close()
			return
		}
		d.callTool(id.number(), params)
	default:
		d.replyError(id.number(), "Method not implemented: "+name)
	}
}

// initialize stores the address for the camera's pictures and ignores everything else in the
// request (4.2).
func (d *Device) initialize(id int, params value) {
	v := params.field("capabilities").field("vision")
	if url := v.field("url"); url.isString() {
		d.mu.Lock()
		d.vision = vision{url: url.text(), token: v.field("token").text()}
		d.mu.Unlock()
	}
	b := append([]byte(`{"protocolVersion":"2024-11-05","capabilities":{"tools":{}},"serverInfo":{"name":"`),
		d.board.name...)
	b = append(append(b, `","version":"`...), d.running().build.version...)
	d.replyResult(id, append(b, `"}}`...))
}

const (
	maxListResult = 8000
	listReserve   = 30 // kept free for the cursor
)

// listTools implements McpServer::GetToolsList (4.3), with its limit and its errors.
func (d *Device) listTools(id int, params value) {
	page, next := listPage(d.toolset(), params.field("cursor").text(), params.field("withUserTools").isTrue())
	if page == nil {
		d.replyError(id, "Failed to add tool "+next+" because of payload size limit")
		return
	}
	d.replyResult(id, page)
}

// listPage returns the result that begins with the tool named cursor. A nil page means the
// firmware's error, about the tool next.
func listPage(tools []*tool, cursor string, withUserTools bool) (page []byte, next string) {
	const head = `{"tools":[`
	page = append(make([]byte, 0, 2048), head...)
	started := cursor == ""
	for _, t := range tools {
		if started = started || t.name == cursor; !started || t.userOnly && !withUserTools {
			continue
		}
		if len(page)+len(t.json)+1+listReserve > maxListResult {
			next = t.name
			break
		}
		page = append(append(page, t.json...), ',')
	}
	if len(page) == len(head) {
		return nil, next
	}
	page = append(page[:len(page)-1], ']')
	if next != "" {
		page = appendQuoted(append(page, `,"nextCursor":`...), next)
	}
	return append(page, '}'), next
}

// callTool implements McpServer::DoToolCall (4.4): checks at once, execution later.
func (d *Device) callTool(id int, params value) {
	name, args := params.field("name"), params.field("arguments")
	switch {
	case params == nil:
		d.replyError(id, "Missing params")
		return
	case !name.isString():
		d.replyError(id, "Missing name")
		return
	case args != nil && !args.isObject():
		d.replyError(id, "Invalid arguments")
		return
	}
	t := findTool(d.toolset(), name.text())
	if t == nil {
		d.replyError(id, "Unknown tool: "+name.text())
		return
	}
	picked, err := t.arguments(args)
	if err != nil {
		d.replyError(id, err.Error())
		return
	}
	call := Call{ID: id, Tool: t.name}
	if d.fleet.options.RecordCalls > 0 {
		call.Arguments = string(args)
	}
	d.schedule(func(ctx context.Context) { d.execute(ctx, call, t, picked) })
}

func findTool(tools []*tool, name string) *tool {
	for _, t := range tools {
		if t.name == name {
			return t
		}
	}
	return nil
}

func (d *Device) replyResult(id int, result []byte) {
	d.reply(id, `"result":`+string(result))
}

// replyError sends no code, and the text unescaped: a quote in it breaks the JSON, as on the
// device.
func (d *Device) replyError(id int, message string) {
	d.stats().errors.Add(1)
	if d.board.software {
		d.reply(id, `"error":{"code":-32603,"message":`+string(appendQuoted(nil, message))+`}`)
		return
	}
	d.reply(id, `"error":{"message":"`+message+`"}`)
}

// reply goes through the main task, behind the jobs that a tool has queued. Therefore a reboot is
// never answered, and a failed upgrade late (4.7).
func (d *Device) reply(id int, outcome string) {
	members := `"type":"mcp","payload":{"jsonrpc":"2.0","id":` + strconv.Itoa(id) + `,` + outcome + `}`
	d.schedule(func(context.Context) {
		if d.publish(d.message(members)) {
			d.stats().replies.Add(1)
		} else {
			d.stats().lostReplies.Add(1)
		}
	})
}
