package matrix

import (
	"encoding/json"
	"strings"

	"fleetd/fleet"
)

// byMCP is the method of the operations that are tools of the MCP server.
const byMCP = "MCP"

// toolsOfMCP adds the tools that the MCP server lists, as operations.
func (w *world) toolsOfMCP(all map[string]operation) {
	w.t.Helper()
	a := w.mcp(w.root, "tools/list", obj{})
	var listed struct {
		Result struct {
			Tools []struct{ Name string }
			Next  string `json:"nextCursor"`
		}
	}
	err := json.Unmarshal([]byte(a.text), &listed)
	if err != nil || len(listed.Result.Tools) == 0 || listed.Result.Next != "" {
		w.t.Fatalf("the list of the MCP server's tools is answered %d %.300s: %v", a.status, a.text, err)
	}
	for _, tool := range listed.Result.Tools {
		all["mcp "+tool.Name] = operation{"mcp " + tool.Name, byMCP, tool.Name}
	}
}

// mcp sends a request of MCP. The answer of a failed tool has the status 422, or
// 404 if a tool of devices does not exist.
func (w *world) mcp(secret, method string, params any) answer {
	w.t.Helper()
	req := w.request(secret, "POST", "", obj{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	req.URL.Path = "/mcp"
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Mcp-Protocol-Version", "2025-11-25")
	a := w.send(req)
	for line := range strings.Lines(a.text) {
		if data, ok := strings.CutPrefix(line, "data:"); ok { // the answer arrived as a stream
			a.text, a.body = strings.TrimSpace(data), nil
			_ = json.Unmarshal([]byte(a.text), &a.body)
		}
	}
	result, ok := a.body["result"].(map[string]any)
	if failed, _ := result["isError"].(bool); a.status == 200 && (!ok || failed) {
		a.status = 422
		if strings.Contains(a.text, `"mcp_unknown_tool"`) {
			a.status = 404
		}
	}
	return a
}

// mcpRows has every tool of the MCP server.
var mcpRows = map[string]row{
	"mcp find_devices": mcpRead(somewhere, nil), "mcp search_tools": mcpRead(somewhere, nil),
	"mcp list_calls": mcpRead(somewhere, nil), "mcp list_campaigns": mcpRead(somewhere, nil),
	// For a principal, only tools that it may call exist.
	"mcp describe_tool":   absent(mcpRead(somewhere, func(*world, side) obj { return obj{"tool": "self.get_device_status"} })),
	"mcp describe_device": mcpRead(onDevice, aboutDevice), "mcp explain_device": mcpRead(onDevice, aboutDevice),
	"mcp get_call": mcpRecord("self.get_device_status", func(w *world, s side) obj { return obj{"id": w.fixture[s]["call"]} }),
	"mcp get_call/user-only": mcpRecord("self.screen.snapshot", func(w *world, s side) obj {
		return obj{"id": w.fixture[s]["picture"]}
	}),
	"mcp get_snapshot":         mcpRecord("self.screen.snapshot", aboutDevice),
	"mcp read_device":          mcpCall("self.get_device_status", obj{}),
	"mcp call_device":          mcpCall("self.audio_speaker.set_volume", obj{"volume": 33}),
	"mcp call_device/user":     mcpCall("self.get_system_info", obj{}),
	"mcp call_devices":         mcpCalls("self.get_device_status", obj{}),
	"mcp call_devices/changes": mcpCalls("self.audio_speaker.set_volume", obj{"volume": 34}),
	"mcp cancel_call": {need: asOperator, reach: onDevice, tool: late, writes: list("calls", "call_waits"),
		ask: func(w *world, _ *principal, s side) request { return request{body: obj{"id": w.lateCall(s)["id"]}} }},
	"mcp cancel_call/own": {need: asOperator, reach: onDevice, models: too, tool: late, writes: list("calls", "call_waits"),
		ask: func(w *world, p *principal, s side) request {
			return request{body: obj{"id": w.ownLateCall(p, s)["id"]}}
		}},
	"mcp cancel_call/fan-out": {need: asOperator, reach: onDevice, models: own, writes: list("fanouts", "calls", "fanout_targets"),
		ask: func(w *world, _ *principal, s side) request {
			t := w.keep("waiting fan-out", s, func() thing { return thing{"id": w.waitingFanOut(w.root, s)} })
			return request{body: obj{"id": t["id"]}}
		}},
	"mcp propose_campaign": {need: asOperator, reach: onDevice, models: too,
		writes: list("campaigns", "campaign_images", "waves", "deployments", "deployment_events"),
		ask: func(w *world, _ *principal, s side) request {
			p := w.plan(s, "plan")
			return request{body: obj{"name": p["name"], "release": w.release, "devices": p["devices"]}}
		}},
}

func init() {
	for name, r := range mcpRows {
		rows[name] = r
	}
}

func aboutDevice(w *world, s side) obj { return obj{"device": w.live[s]} }

func mcpRead(reach reach, arguments func(*world, side) obj) row {
	return row{need: viewer, reach: reach, models: too, ask: func(w *world, _ *principal, s side) request {
		if arguments == nil {
			return request{body: obj{}}
		}
		return request{body: arguments(w, s)}
	}}
}

func mcpRecord(tool string, arguments func(*world, side) obj) row {
	r := mcpRead(onDevice, arguments)
	r.of = tool
	return r
}

func mcpCall(tool string, arguments obj) row {
	return row{need: asOperator, reach: onDevice, models: too, tool: tool, writes: list("calls"),
		ask: func(w *world, _ *principal, s side) request {
			return request{body: obj{"device": w.live[s], "tool": tool, "arguments": arguments}}
		}}
}

func mcpCalls(tool string, arguments obj) row {
	return row{need: asOperator, reach: onDevice, models: too, tool: tool, writes: list("calls", "fanouts", "fanout_targets"),
		ask: func(w *world, _ *principal, s side) request {
			return request{body: obj{"devices": []fleet.DeviceID{w.live[s]}, "tool": tool, "arguments": arguments, "confirm": 1}}
		}, undo: (*world).fanOutEnds}
}
