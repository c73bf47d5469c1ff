package host_test

//lint:file-ignore SA1019 the refusal of deprecated requests is tested

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"
)

// The tests' binary is also the program of their plug-ins: HOST_ROLE says which.
func TestMain(m *testing.M) {
	role := os.Getenv("HOST_ROLE")
	if role == "" {
		goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("fleetd/internal/program.runLauncher")) // for life
		return
	}
	run, known := roles[role]
	if !known {
		fmt.Fprintln(os.Stderr, "unknown role", role)
		os.Exit(2)
	}
	run()
	os.Exit(0)
}

var roles = map[string]func(){
	"good": func() { serve(newServer("good", "1.0.0")) },
	"second": func() {
		s := newServer("good", "2.0.0")
		addTool(s, "added", func(context.Context, *sdk.CallToolRequest) (string, error) { return "new", nil })
		serve(s)
	},
	"noise": func() {
		fmt.Println("loading...")
		fmt.Println(`{"this is": "no message"}`)
		fmt.Println(`[1, 2]`)
		go func() {
			for range time.Tick(50 * time.Millisecond) {
				fmt.Println("still loading")
			}
		}()
		serve(newServer("noise", "1"))
	},
	"exit": func() {
		fmt.Fprintln(os.Stderr, "the configuration is missing")
		os.Exit(3)
	},
	"late": func() { // it answers for a second, and then ends
		time.AfterFunc(300*time.Millisecond, func() { os.Exit(4) })
		serve(newServer("late", "1"))
	},
	"stubborn": func() {
		signal.Ignore(syscall.SIGTERM)
		serve(newServer("stubborn", "1"))
		select {}
	},
	"mute": func() { select {} },
	"flood": func() {
		s := newServer("flood", "1")
		go func() {
			for { // one write is one line, so that answers come between
				fmt.Println(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"flood"}}`)
			}
		}()
		serve(s)
	},
	"changing": func() { // another list of tools while it runs
		s := newServer("changing", "1")
		time.AfterFunc(500*time.Millisecond, func() {
			addTool(s, "later", func(context.Context, *sdk.CallToolRequest) (string, error) { return "here", nil })
		})
		serve(s)
	},
	"huge":  huge,
	"liar":  liar,
	"crowd": func() { crowd(2000) },
	"legacy": func() { // a server that knows only the first version
		rpc(func(method string, params json.RawMessage) (any, bool) {
			switch method {
			case "initialize":
				return map[string]any{"protocolVersion": "2024-11-05", "capabilities": map[string]any{"tools": map[string]any{}},
					"serverInfo": map[string]any{"name": "legacy", "version": "0.1"}}, true
			case "tools/list":
				return map[string]any{"tools": []any{map[string]any{"name": "old", "inputSchema": map[string]any{"type": "object"}}}}, true
			case "tools/call":
				return map[string]any{"content": []any{map[string]any{"type": "text", "text": "old answer"}}}, true
			case "ping":
				return map[string]any{}, true
			}
			return nil, false
		})
	},
}

func serve(s *sdk.Server) { _ = s.Run(context.Background(), &sdk.StdioTransport{}) }

func newServer(name, version string) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: name, Version: version}, &sdk.ServerOptions{
		Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{ListChanged: true}}})
	addTool(s, "echo", func(_ context.Context, r *sdk.CallToolRequest) (string, error) {
		return string(r.Params.Arguments), nil
	})
	addTool(s, "pid", func(context.Context, *sdk.CallToolRequest) (string, error) { return fmt.Sprint(os.Getpid()), nil })
	addTool(s, "env", func(context.Context, *sdk.CallToolRequest) (string, error) {
		env := os.Environ()
		slices.Sort(env)
		return strings.Join(env, "\n"), nil
	})
	addTool(s, "user", func(context.Context, *sdk.CallToolRequest) (string, error) { return fmt.Sprint(os.Getuid()), nil })
	addTool(s, "big", func(_ context.Context, r *sdk.CallToolRequest) (string, error) {
		var in struct{ Size int }
		_ = json.Unmarshal(r.Params.Arguments, &in)
		return strings.Repeat("x", in.Size), nil
	})
	addTool(s, "slow", func(ctx context.Context, r *sdk.CallToolRequest) (string, error) {
		var in struct{ Millis int }
		_ = json.Unmarshal(r.Params.Arguments, &in)
		for i := range 10 {
			select {
			case <-ctx.Done():
				fmt.Fprintln(os.Stderr, "slow was cancelled")
				return "", ctx.Err()
			case <-time.After(time.Duration(in.Millis) * time.Millisecond / 10):
			}
			if token := r.Params.GetProgressToken(); token != nil {
				_ = r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: float64(i + 1),
					Total: 10})
			}
		}
		return "done", nil
	})
	addTool(s, "hang", func(context.Context, *sdk.CallToolRequest) (string, error) { // with all its threads
		go func() {
			time.Sleep(20 * time.Millisecond)
			_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		}()
		select {}
	})
	addTool(s, "exit", func(context.Context, *sdk.CallToolRequest) (string, error) { os.Exit(7); return "", nil })
	addTool(s, "fork", func(context.Context, *sdk.CallToolRequest) (string, error) {
		c := exec.Command("/bin/sh", "-c", "setsid sleep 300 >/dev/null 2>&1 & echo $!")
		out, err := c.Output()
		return strings.TrimSpace(string(out)), err
	})
	addTool(s, "eat", func(context.Context, *sdk.CallToolRequest) (string, error) {
		for kept := [][]byte{}; ; time.Sleep(5 * time.Millisecond) {
			b := make([]byte, 4<<20)
			for i := range b {
				b[i] = 1
			}
			kept = append(kept, b)
			if len(kept) > 200 {
				return "not stopped", nil
			}
		}
	})
	addTool(s, "sample", func(ctx context.Context, r *sdk.CallToolRequest) (string, error) {
		_, sampling := r.Session.CreateMessage(ctx, &sdk.CreateMessageParams{MaxTokens: 1,
			Messages: []*sdk.SamplingMessage{}})
		_, asking := r.Session.Elicit(ctx, &sdk.ElicitParams{Message: "?", RequestedSchema: map[string]any{"type": "object"}})
		return fmt.Sprintf("%v | %v", sampling, asking), nil
	})
	return s
}

func addTool(s *sdk.Server, name string, do func(context.Context, *sdk.CallToolRequest) (string, error)) {
	s.AddTool(&sdk.Tool{Name: name, Description: "about " + name, InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			text, err := do(ctx, r)
			if err != nil {
				return nil, err
			}
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}, nil
		})
}

// rpc answers requests without an SDK.
func rpc(answer func(method string, params json.RawMessage) (any, bool)) {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var q struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Params json.RawMessage `json:"params"`
		}
		if json.Unmarshal(in.Bytes(), &q) != nil || q.ID == nil {
			continue
		}
		reply := map[string]any{"jsonrpc": "2.0", "id": q.ID}
		if result, known := answer(q.Method, q.Params); known {
			reply["result"] = result
		} else {
			reply["error"] = map[string]any{"code": -32601, "message": "Method not found"}
		}
		out, _ := json.Marshal(reply)
		fmt.Println(string(out))
	}
}

// huge answers calls of huge with 100 MB, and others while it writes them.
func huge() {
	var out sync.Mutex
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var q struct {
			ID     json.RawMessage
			Method string
			Params struct{ Name string }
		}
		if json.Unmarshal(in.Bytes(), &q) != nil || q.ID == nil {
			continue
		}
		reply := func(result string) {
			out.Lock()
			defer out.Unlock()
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", q.ID, result)
		}
		switch {
		case q.Method == "initialize":
			reply(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"huge","version":"1"}}`)
		case q.Method == "tools/list":
			reply(`{"tools":[{"name":"huge","inputSchema":{"type":"object"}},{"name":"small","inputSchema":{"type":"object"}}]}`)
		case q.Params.Name == "huge":
			go reply(`{"content":[{"type":"text","text":"` + strings.Repeat("x", 100_000_000) + `"}]}`)
		case q.Params.Name == "small":
			time.AfterFunc(time.Second, func() { reply(`{"content":[{"type":"text","text":"small"}]}`) })
		default:
			reply(`{}`)
		}
	}
}

// liar offers tools that are not what they seem.
func liar() {
	tool := func(name string, schema any) map[string]any {
		return map[string]any{"name": name, "description": "d", "inputSchema": schema}
	}
	deep := map[string]any{}
	for range 50 {
		deep = map[string]any{"type": "object", "properties": map[string]any{"x": deep}}
	}
	rpc(func(method string, _ json.RawMessage) (any, bool) {
		switch method {
		case "initialize":
			return map[string]any{"protocolVersion": "2025-11-25", "capabilities": map[string]any{"tools": map[string]any{}},
				"serverInfo": map[string]any{"name": strings.Repeat("n", 5000), "version": "1\u202e"}}, true
		case "tools/list":
			return map[string]any{"tools": []any{tool("fine", map[string]any{"type": "object"}), tool("fine", deep),
				tool("deep", deep), tool("text", "no schema"), tool("list", []any{1}), tool(`quo"te`, map[string]any{}),
				tool("", map[string]any{}), tool(strings.Repeat("long", 100), map[string]any{}),
				tool("ctrl\u0007", map[string]any{"type": "object"})}}, true
		case "tools/call":
			return map[string]any{"content": "not a list", "isError": "maybe"}, true
		}
		return nil, false
	})
}

// crowd offers n tools on endless pages.
func crowd(n int) {
	rpc(func(method string, params json.RawMessage) (any, bool) {
		switch method {
		case "initialize":
			return map[string]any{"protocolVersion": "2025-11-25", "capabilities": map[string]any{"tools": map[string]any{}},
				"serverInfo": map[string]any{"name": "crowd", "version": "1"}}, true
		case "tools/list":
			var p struct{ Cursor string }
			_ = json.Unmarshal(params, &p)
			page := 0
			_, _ = fmt.Sscan(p.Cursor, &page)
			var tools []any
			for i := range 100 {
				tools = append(tools, map[string]any{"name": fmt.Sprintf("t%d_%d", page, i),
					"inputSchema": map[string]any{"type": "object"}})
			}
			return map[string]any{"tools": tools, "nextCursor": fmt.Sprint(page + 1)}, true
		}
		return nil, false
	})
}
