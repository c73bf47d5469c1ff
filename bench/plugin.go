package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// pluginCommand compares calls of a plug-in's tool through /mcp with those of a client of the
// go-sdk that runs the same program itself. Both clients are of the go-sdk, and measured in turns.
type pluginCommand struct {
	serveOptions
	Rounds  int           `help:"How many rounds; a figure is their median." default:"5"`
	Each    time.Duration `help:"Length of one measurement." default:"2s"`
	Flights []int         `help:"Calls in flight." default:"1,16"`
	Work    []int         `help:"How many milliseconds the tool takes." default:"0,5"`
	Many    int           `help:"Also run this many plug-ins, and print the memory of fleetd and of each." default:"0"`
}

// pluginProgram is the MCP server that pluginCommand measures.
type pluginProgram struct{}

type pluginInput struct {
	Text   string `json:"text"`
	Millis int    `json:"millis"`
}

// Run serves MCP over standard input and output.
func (pluginProgram) Run(ctx context.Context) error {
	s := mcp.NewServer(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "echo", Description: "Returns the text."},
		func(_ context.Context, _ *mcp.CallToolRequest, in pluginInput) (*mcp.CallToolResult, any, error) {
			time.Sleep(time.Duration(in.Millis) * time.Millisecond)
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: in.Text}}}, nil, nil
		})
	return s.Run(ctx, &mcp.StdioTransport{})
}

// Run measures and prints a table.
func (c *pluginCommand) Run(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "fleetd-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	plugins := filepath.Join(dir, "plugins")
	if err := os.Mkdir(plugins, 0o755); err != nil {
		return err
	}
	manifest := fmt.Sprintf("command: [%q, plugin-program]\nuser: %q\n", self, fmt.Sprint(os.Getuid()))
	for i := range 1 + c.Many {
		if err := os.WriteFile(filepath.Join(plugins, fmt.Sprintf("p%d.yaml", i)), []byte(manifest), 0o644); err != nil {
			return err
		}
	}
	r, err := startServe(ctx, filepath.Join(dir, "data"), c.serveOptions, "--plugins-dir", plugins)
	if err != nil {
		return err
	}
	defer r.stop()

	direct, err := mcp.NewClient(&mcp.Implementation{Name: "bench"}, nil).Connect(ctx,
		&mcp.CommandTransport{Command: exec.CommandContext(ctx, self, "plugin-program")}, nil)
	if err != nil {
		return err
	}
	defer direct.Close()
	through, err := mcp.NewClient(&mcp.Implementation{Name: "bench"}, nil).Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint:   "http://" + r.http + "/mcp",
		HTTPClient: &http.Client{Transport: bearer{r.token, &http.Transport{MaxIdleConnsPerHost: 64}}}}, nil)
	if err != nil {
		return err
	}
	defer through.Close()
	ways := []struct {
		name string
		call func(context.Context, pluginInput) error
	}{
		{"direct", func(ctx context.Context, in pluginInput) error {
			return called(direct.CallTool(ctx, &mcp.CallToolParams{Name: "echo", Arguments: in}))
		}},
		{"through /mcp", func(ctx context.Context, in pluginInput) error {
			return called(through.CallTool(ctx, &mcp.CallToolParams{Name: "call_device",
				Arguments: map[string]any{"device": "plugin.p0", "tool": "echo", "arguments": in}}))
		}},
	}
	if err := waitForCall(ctx, ways[1].call); err != nil {
		return err
	}
	fmt.Printf("%-14s %9s %8s %12s %10s %10s\n", "", "in flight", "tool ms", "calls/s", "p50 ms", "p99 ms")
	for _, work := range c.Work {
		for _, flight := range c.Flights {
			medians := make([][]pluginRound, len(ways))
			for range c.Rounds {
				for i, w := range ways {
					round, err := measurePlugin(ctx, flight, c.Each, pluginInput{"hello", work}, w.call)
					if err != nil {
						return fmt.Errorf("%s: %w", w.name, err)
					}
					medians[i] = append(medians[i], round)
				}
			}
			var p50 []time.Duration
			for i, w := range ways {
				slices.SortFunc(medians[i], func(a, b pluginRound) int { return cmp.Compare(a.p50, b.p50) })
				m := medians[i][len(medians[i])/2]
				p50 = append(p50, m.p50)
				fmt.Printf("%-14s %9d %8d %12.0f %10.3f %10.3f\n", w.name, flight, work, m.perSecond, ms(m.p50), ms(m.p99))
			}
			fmt.Printf("%-14s %41.2f\n", "ratio of p50", float64(p50[1])/float64(p50[0]))
		}
	}
	if c.Many > 0 {
		time.Sleep(5 * time.Second)
		fmt.Printf("%d plug-ins run; fleetd has %.0f MiB resident\n", 1+c.Many, rss(r.fleetd.pid)/1024)
	}
	return nil
}

func called(r *mcp.CallToolResult, err error) error {
	if err != nil {
		return err
	}
	if r.IsError {
		text, _ := json.Marshal(r.Content)
		return errors.New(string(text))
	}
	return nil
}

// waitForCall waits until the plug-in is connected.
func waitForCall(ctx context.Context, call func(context.Context, pluginInput) error) (err error) {
	for range 100 {
		if err = call(ctx, pluginInput{}); err == nil {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return err
}

type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

type pluginRound struct {
	perSecond float64
	p50, p99  time.Duration
}

// measurePlugin makes calls for a while.
func measurePlugin(ctx context.Context, flight int, each time.Duration, in pluginInput,
	call func(context.Context, pluginInput) error) (pluginRound, error) {
	var mu sync.Mutex
	var took []time.Duration
	var failed error
	began := time.Now()
	var wg sync.WaitGroup
	for range flight {
		wg.Go(func() {
			for time.Since(began) < each {
				start := time.Now()
				err := call(ctx, in)
				mu.Lock()
				took = append(took, time.Since(start))
				failed = cmp.Or(failed, err)
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return pluginRound{}, failed
	}
	slices.Sort(took)
	return pluginRound{float64(len(took)) / time.Since(began).Seconds(), took[len(took)/2], took[len(took)*99/100]}, nil
}
