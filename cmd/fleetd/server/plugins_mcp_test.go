package server

//lint:file-ignore SA1019 logging is deprecated since 2026-07-28, and what clients have

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
	"fleetd/fleet/plugin"
)

// buildPlugins builds examples and writes their manifests.
func buildPlugins(t *testing.T, names ...string) (manifests string) {
	t.Helper()
	bin, manifests := t.TempDir(), t.TempDir()
	args := []string{"build", "-ldflags=-w", "-o", bin + "/"}
	for _, name := range names {
		args = append(args, "fleetd/examples/plugins/"+name)
		manifest := "command: [" + filepath.Join(bin, name) + "]\n"
		if os.Geteuid() == 0 {
			manifest += "user: root\n" // others cannot enter the directories of a test
		}
		if name == "quotes" {
			manifest += "args: [-every, 500ms]\n"
		}
		if err := os.WriteFile(filepath.Join(manifests, name+".yaml"), []byte(manifest), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return manifests
}

// Clients reach the tools, prompts, resources, progress and log messages of plug-ins.
func TestPluginsThroughMCP(t *testing.T) {
	t.Parallel()
	manifests := buildPlugins(t, "quotes", "review", "job", "weather")
	d := startTestServer(t, func(c *Config) { c.PluginsDir = manifests })
	_, model, err := d.Operators.NewToken(t.Context(), testOperator, operator.TokenRequest{Name: "model",
		Kind: fleet.KindModel, Role: fleet.RoleOperator, Tools: []string{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	updates, logs, progressed := make(chan string, 1000), make(chan string, 1000), atomic.Int32{}
	connect := func(path, version string) *mcp.ClientSession {
		s, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
			ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) {
				updates <- r.Params.URI
			},
			LoggingMessageHandler: func(_ context.Context, r *mcp.LoggingMessageRequest) {
				data, _ := json.Marshal(r.Params.Data)
				logs <- r.Params.Logger + " " + string(data)
			},
			ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { progressed.Add(1) },
		}).Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: d.URL() + path, HTTPClient: &http.Client{
			Transport: bearerTransport(model)}}, &mcp.ClientSessionOptions{ProtocolVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	call := func(s *mcp.ClientSession, tool string, args map[string]any) string {
		p := &mcp.CallToolParams{Name: tool, Arguments: args}
		p.SetProgressToken("p")
		r, err := s.CallTool(t.Context(), p)
		if err != nil {
			t.Fatalf("%s: %v", tool, err)
		}
		return r.Content[0].(*mcp.TextContent).Text
	}
	eventually := func(what string, is func() bool) {
		t.Helper()
		fleettest.Eventually(t, what, is)
	}
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		s := connect("/mcp", version)
		eventually("four plug-ins are connected", func() bool {
			return strings.Contains(call(s, "find_devices", map[string]any{"q": "kind:plugin presence:online"}), "4 devices match")
		})
		eventually("prompts and resources are counted", func() bool {
			review, _ := d.host.Status("review")
			quotes, _ := d.host.Status("quotes")
			return review.Prompts == 2 && review.Resources == 0 && quotes.Resources > 0
		})
		if got := call(s, "search_tools", map[string]any{"q": "job"}); !strings.Contains(got, "run_job") {
			t.Errorf("search_tools: %s", got)
		}
		if got := call(s, "describe_tool", map[string]any{"tool": "run_job"}); !strings.Contains(got, "steps") {
			t.Errorf("describe_tool: %s", got)
		}
		before := progressed.Load()
		if got := call(s, "call_device", map[string]any{"device": "plugin.job", "tool": "run_job",
			"arguments": map[string]any{"steps": 4, "seconds": 0.4}}); !strings.Contains(got, "succeeded") {
			t.Errorf("call_device: %s", got)
		}
		// The result may overtake the last notification, which is then dropped.
		eventually("progress", func() bool { return progressed.Load()-before >= 3 })
		var names []string
		for p, err := range s.Prompts(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, p.Name)
		}
		if !slices.Contains(names, "review/review_code") {
			t.Errorf("prompts %q", names)
		}
		g, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "review/explain_change",
			Arguments: map[string]string{"diff": "-a\n+b"}})
		if err != nil || len(g.Messages) != 2 {
			t.Errorf("review/explain_change: %+v, %v", g, err)
		}
		if _, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "review/explain_change"}); err == nil ||
			!strings.Contains(err.Error(), `missing argument`) {
			t.Errorf("without its argument: %v", err)
		}
		c, err := s.Complete(t.Context(), &mcp.CompleteParams{Ref: &mcp.CompleteReference{Type: "ref/prompt",
			Name: "review/review_code"}, Argument: mcp.CompleteParamsArgument{Name: "language", Value: "ja"}})
		if err != nil || len(c.Completion.Values) != 2 {
			t.Errorf("completion: %+v, %v", c, err)
		}
		const uri = "plugin://quotes/quotes://today"
		r, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
		if err != nil || len(r.Contents[0].Text) < 10 {
			t.Errorf("%s: %+v, %v", uri, r, err)
		}
		if err := s.Subscribe(t.Context(), &mcp.SubscribeParams{URI: uri}); err != nil {
			t.Fatal(err)
		}
		eventually("an update", func() bool { return <-updates == uri })
		if version == "2025-11-25" {
			if err := s.SetLoggingLevel(t.Context(), &mcp.SetLoggingLevelParams{Level: "info"}); err != nil {
				t.Fatal(err)
			}
			call(s, "call_device", map[string]any{"device": "plugin.job", "tool": "run_job",
				"arguments": map[string]any{"steps": 1, "seconds": 0.1}})
			eventually("a log message", func() bool {
				line := <-logs
				return strings.HasPrefix(line, "job ") && strings.Contains(line, "job done")
			})
			if _, err := d.Plugins.Restart(t.Context(), testOperator, "quotes"); err != nil {
				t.Fatal(err)
			}
			for len(updates) > 0 {
				<-updates
			}
			time.Sleep(2 * time.Second)
			for len(updates) > 0 {
				<-updates
			}
			eventually("an update after a restart", func() bool { return <-updates == uri })
		}
		s.Close()

		one := connect("/mcp/plugins/job", version)
		tools, err := one.ListTools(t.Context(), nil)
		if err != nil || len(tools.Tools) != 1 || tools.Tools[0].Name != "run_job" {
			t.Fatalf("/mcp/plugins/job: %+v, %v", tools, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := one.CallTool(ctx, &mcp.CallToolParams{Name: "run_job", Arguments: map[string]any{"seconds": 30}}); err == nil {
			t.Error("a cancelled call succeeds")
		}
		eventually("the job is cancelled", func() bool {
			lines, _ := d.Plugins.Lines(testOperator, "job")
			n := 0
			for _, l := range lines {
				if l.Source == plugin.FromStderr && strings.Contains(l.Text, "job cancelled") {
					n++
				}
			}
			return n == map[string]int{"2025-11-25": 1, "2026-07-28": 2}[version]
		})
		eventually("the record says so", func() bool {
			var calls struct {
				Items []struct {
					State string
					Error *struct{ Code string }
				}
			}
			d.rest("GET", "/calls?device=plugin.job&limit=1", nil, &calls)
			return len(calls.Items) == 1 && calls.Items[0].Error != nil && calls.Items[0].Error.Code == "withdrawn"
		})
		one.Close()
	}
}
