//lint:file-ignore SA1019 logging is deprecated since 2026-07-28, and what clients have

package plugins_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

var programs string // the directory of the programs

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if programs, err = os.MkdirTemp("", "fleetd-plugins"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(programs)
	args := []string{"build", "-ldflags=-w", "-o", programs + "/"}
	race := debug.BuildSetting{Key: "-race", Value: "true"}
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, race) {
		args = append(args, "-race")
	}
	if out, err := exec.Command("go", append(args, "./...")...).CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// eachVersion runs a test with the version of MCP that has sessions, and with the
// one that has none.
func eachVersion(t *testing.T, test func(t *testing.T, version string)) {
	t.Parallel()
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			test(t, version)
		})
	}
}

type plugin struct {
	*mcp.ClientSession
	t      *testing.T
	ctx    context.Context
	stderr lines
}

// lines receives what a plug-in writes to standard error.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

func start(t *testing.T, version string, opts *mcp.ClientOptions, command ...string) plugin {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	cmd := exec.Command(command[0], command[1:]...)
	stderr := make(lines, 100)
	cmd.Stderr = io.MultiWriter(stderr, t.Output())
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1.0.0"}, opts)
	session, err := client.Connect(ctx, &mcp.CommandTransport{Command: cmd},
		&mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := session.Close(); err != nil { // also if the program fails at the end of its input
			t.Errorf("close: %v", err)
		}
	})
	return plugin{session, t, ctx, stderr}
}

func startGo(t *testing.T, version string, opts *mcp.ClientOptions, name string, args ...string) plugin {
	t.Helper()
	p := start(t, version, opts, append([]string{filepath.Join(programs, name)}, args...)...)
	got := p.InitializeResult()
	if got.ServerInfo.Name != name || got.ProtocolVersion != version {
		t.Fatalf("connected to %s with MCP %s, want %s with %s", got.ServerInfo.Name, got.ProtocolVersion, name, version)
	}
	return p
}

// call calls a tool, and stores its structured result in out. Nil args become null, which
// servers must survive.
func (p plugin) call(tool string, args map[string]any, out any) {
	p.t.Helper()
	result, err := p.CallTool(p.ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		p.t.Fatal(err)
	}
	if result.IsError {
		p.t.Fatalf("%s: %s", tool, text(p.t, result.Content))
	}
	unmarshal(p.t, result, out)
}

// callError calls a tool, and returns the text of its tool error.
func (p plugin) callError(tool string, args map[string]any) string {
	p.t.Helper()
	result, err := p.CallTool(p.ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		p.t.Fatal(err)
	}
	if !result.IsError {
		p.t.Fatalf("%s %v: no error, but %s", tool, args, text(p.t, result.Content))
	}
	return text(p.t, result.Content)
}

// checkTools compares the names of the tools, which must be read-only and of a closed world.
func (p plugin) checkTools(want ...string) {
	p.t.Helper()
	var got []string
	for tool, err := range p.Tools(p.ctx, nil) {
		if err != nil {
			p.t.Fatal(err)
		}
		got = append(got, tool.Name)
		if tool.OutputSchema == nil || tool.Description == "" {
			p.t.Errorf("%s has no output schema, or no description", tool.Name)
		}
		if a := tool.Annotations; a == nil || !a.ReadOnlyHint || a.OpenWorldHint == nil || *a.OpenWorldHint {
			p.t.Errorf("%s has the annotations %+v", tool.Name, a)
		}
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		p.t.Errorf("tools: %q, want %q", got, want)
	}
}

// checkCompletion compares the completion of an argument when others were given before.
func (p plugin) checkCompletion(
	ref *mcp.CompleteReference, argument, value string, given map[string]string, want ...string,
) {
	p.t.Helper()
	result, err := p.Complete(p.ctx, &mcp.CompleteParams{Ref: ref, Context: &mcp.CompleteContext{Arguments: given},
		Argument: mcp.CompleteParamsArgument{Name: argument, Value: value}})
	if err != nil {
		p.t.Fatal(err)
	}
	if got := result.Completion; got.Values == nil || !slices.Equal(got.Values, want) || got.Total != len(want) {
		p.t.Errorf("completion of %s %q: %+v, want %q", argument, value, got, want)
	}
}

// read returns the text of a resource.
func (p plugin) read(uri string) string {
	p.t.Helper()
	result, err := p.ReadResource(p.ctx, &mcp.ReadResourceParams{URI: uri})
	if err != nil {
		p.t.Fatal(err)
	}
	if len(result.Contents) != 1 || result.Contents[0].URI != uri || result.Contents[0].MIMEType != "text/plain" {
		p.t.Fatalf("%s: %+v", uri, result.Contents)
	}
	return result.Contents[0].Text
}

func (p plugin) await(what string, done <-chan string) string {
	p.t.Helper()
	select {
	case s := <-done:
		return s
	case <-p.ctx.Done():
		p.t.Fatalf("no %s", what)
		return ""
	}
}

func text(t *testing.T, content []mcp.Content) string {
	t.Helper()
	if len(content) == 1 {
		if c, ok := content[0].(*mcp.TextContent); ok {
			return c.Text
		}
	}
	t.Fatalf("content: %+v, want one text", content)
	return ""
}

// unmarshal stores a structured result in out, and checks that its text is the same JSON.
func unmarshal(t *testing.T, result *mcp.CallToolResult, out any) {
	t.Helper()
	structured, err := json.Marshal(result.StructuredContent)
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(bytes.NewReader(structured))
	dec.DisallowUnknownFields()
	if err := dec.Decode(out); err != nil {
		t.Fatalf("%s: %v", structured, err)
	}
	var same any
	if err := json.Unmarshal([]byte(text(t, result.Content)), &same); err != nil {
		t.Fatal(err)
	}
	if again, _ := json.Marshal(same); !bytes.Equal(again, structured) {
		t.Errorf("text is %s, structured content %s", again, structured)
	}
}

func checkCode(t *testing.T, err error, code int64) {
	t.Helper()
	if e, ok := errors.AsType[*jsonrpc.Error](err); !ok || e.Code != code {
		t.Errorf("error is %v, want code %d", err, code)
	}
}

func TestWeather(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		p := startGo(t, version, nil, "weather")
		p.checkTools("get_weather", "list_cities")

		var list struct {
			Cities []struct{ Name, Chinese string }
		}
		p.call("list_cities", nil, &list)
		if len(list.Cities) != 20 {
			t.Errorf("%d cities, want 20", len(list.Cities))
		}
		type weather struct {
			Name, Chinese, Month string
			Temperature          int
			Temperatures         []int
		}
		for _, c := range list.Cities {
			for _, name := range []string{c.Name, " " + strings.ToUpper(c.Name), c.Chinese, c.Chinese + "市"} {
				var got weather
				p.call("get_weather", map[string]any{"city": name}, &got)
				if got.Name != c.Name || got.Chinese != c.Chinese || len(got.Temperatures) != 12 || got.Month == "" ||
					!slices.Contains(got.Temperatures, got.Temperature) {
					t.Errorf("get_weather %q: %+v", name, got)
				}
			}
		}
		for _, city := range []string{"Atlantis", ""} {
			if got := p.callError("get_weather", map[string]any{"city": city}); !strings.Contains(got, "Beijing (北京)") {
				t.Errorf("get_weather %q: %q does not name the known cities", city, got)
			}
		}
		if got := p.callError("get_weather", nil); !strings.Contains(got, "city") {
			t.Errorf("get_weather without a city: %q", got)
		}
	})
}

func TestReview(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		p := startGo(t, version, nil, "review")
		got := make(map[string]string)
		for prompt, err := range p.Prompts(p.ctx, nil) {
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range prompt.Arguments {
				got[prompt.Name] += fmt.Sprintf("%s %t;", a.Name, a.Required)
			}
		}
		want := map[string]string{"review_code": "language true;code true;focus false;", "explain_change": "diff true;"}
		if !maps.Equal(got, want) {
			t.Errorf("prompts: %v, want %v", got, want)
		}

		get := func(name string, args map[string]string) (texts []string, err error) {
			result, err := p.GetPrompt(p.ctx, &mcp.GetPromptParams{Name: name, Arguments: args})
			if err != nil {
				return nil, err
			}
			for _, m := range result.Messages {
				if m.Role != "user" {
					t.Errorf("role %q", m.Role)
				}
				texts = append(texts, text(t, []mcp.Content{m.Content}))
			}
			return texts, nil
		}
		const code = "fmt.Println(\"```\")"
		texts, err := get("review_code", map[string]string{"language": "Go", "code": code, "focus": "security"})
		if err != nil || len(texts) != 2 || texts[1] != code ||
			!strings.Contains(texts[0], "Go code") || !strings.Contains(texts[0], "security") {
			t.Errorf("review_code: %q, %v", texts, err)
		}
		texts, err = get("review_code", map[string]string{"language": "Go", "code": code})
		if err != nil || strings.Contains(texts[0], "first.") {
			t.Errorf("review_code without focus: %q, %v", texts, err)
		}
		texts, err = get("explain_change", map[string]string{"diff": "-a\n+b"})
		if err != nil || len(texts) != 2 || texts[1] != "-a\n+b" {
			t.Errorf("explain_change: %q, %v", texts, err)
		}
		_, err = get("review_code", map[string]string{"language": "Go"})
		checkCode(t, err, jsonrpc.CodeInvalidParams)
		_, err = get("explain_change", nil)
		checkCode(t, err, jsonrpc.CodeInvalidParams)

		ref := &mcp.CompleteReference{Type: "ref/prompt", Name: "review_code"}
		p.checkCompletion(ref, "language", "j", nil, "Java", "JavaScript")
		p.checkCompletion(ref, "language", "cobol", nil)
		p.checkCompletion(ref, "focus", "", map[string]string{"language": "Go"},
			"clarity", "concurrency", "correctness", "error handling", "performance", "security", "tests")
		p.checkCompletion(ref, "focus", "m", map[string]string{"language": "C++"}, "memory safety")
		p.checkCompletion(ref, "code", "f", nil)
		_, err = p.Complete(p.ctx, &mcp.CompleteParams{Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: "other"},
			Argument: mcp.CompleteParamsArgument{Name: "language"}})
		checkCode(t, err, jsonrpc.CodeInvalidParams)
	})
}

func TestQuotes(t *testing.T) {
	const today = "quotes://today"
	eachVersion(t, func(t *testing.T, version string) {
		updated := make(chan string, 100)
		p := startGo(t, version, &mcp.ClientOptions{
			ResourceUpdatedHandler: func(_ context.Context, req *mcp.ResourceUpdatedNotificationRequest) {
				updated <- req.Params.URI
			},
		}, "quotes", "-every=200ms")

		resources, err := p.ListResources(p.ctx, nil)
		if err != nil || len(resources.Resources) != 1 || resources.Resources[0].URI != today {
			t.Errorf("resources: %+v, %v", resources, err)
		}
		templates, err := p.ListResourceTemplates(p.ctx, nil)
		if err != nil || len(templates.ResourceTemplates) != 1 ||
			templates.ResourceTemplates[0].URITemplate != "quotes://author/{name}" {
			t.Errorf("templates: %+v, %v", templates, err)
		}
		ref := &mcp.CompleteReference{Type: "ref/resource", URI: "quotes://author/{name}"}
		p.checkCompletion(ref, "name", "c", nil, "Charles Dickens", "Confucius")
		p.checkCompletion(ref, "name", "李", nil, "李白")
		p.checkCompletion(ref, "name", "zz", nil)
		if got := p.read("quotes://author/confucius"); strings.Count(got, "\n") != 2 {
			t.Errorf("Confucius: %q", got)
		}
		if got := p.read("quotes://author/Marcus%20Aurelius"); !strings.Contains(got, "soul") {
			t.Errorf("Marcus Aurelius: %q", got)
		}
		if got := p.read("quotes://author/%E6%9D%8E%E7%99%BD"); !strings.Contains(got, "明月") {
			t.Errorf("李白: %q", got)
		}
		for _, uri := range []string{"quotes://author/nemo", "quotes://tomorrow"} {
			_, err = p.ReadResource(p.ctx, &mcp.ReadResourceParams{URI: uri})
			checkCode(t, err, mcp.CodeResourceNotFound)
		}

		time.Sleep(300 * time.Millisecond)
		if len(updated) > 0 {
			t.Error("a notification without a subscription")
		}
		// The SDK's client does not report a rejected subscription since 2026-07-28.
		err = p.Subscribe(p.ctx, &mcp.SubscribeParams{URI: "quotes://author/Confucius"})
		if version < "2026-07-28" {
			checkCode(t, err, mcp.CodeResourceNotFound)
		}
		if err := p.Subscribe(p.ctx, &mcp.SubscribeParams{URI: today}); err != nil {
			t.Fatal(err)
		}
		before := p.read(today)
		for after := before; after == before; after = p.read(today) { // the first update may be older than before
			if uri := p.await("update of a new quote", updated); uri != today {
				t.Errorf("update of %s", uri)
			}
		}
		if err := p.Unsubscribe(p.ctx, &mcp.UnsubscribeParams{URI: today}); err != nil {
			t.Fatal(err)
		}
		for quiet := false; !quiet; quiet = len(updated) == 0 { // some may be on their way
			if p.ctx.Err() != nil {
				t.Fatal("notifications after the end of the subscription")
			}
			for len(updated) > 0 {
				<-updated
			}
			time.Sleep(500 * time.Millisecond)
		}
	})
}

func TestJob(t *testing.T) {
	type jobOut struct {
		State       string
		Done, Steps int
	}
	eachVersion(t, func(t *testing.T, version string) {
		progress, logged := make(chan string, 100), make(chan string, 100)
		p := startGo(t, version, &mcp.ClientOptions{
			ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
				n := req.Params
				progress <- fmt.Sprintf("%v: %v/%v %s", n.ProgressToken, n.Progress, n.Total, n.Message)
			},
			LoggingMessageHandler: func(_ context.Context, req *mcp.LoggingMessageRequest) {
				data, _ := req.Params.Data.(map[string]any)
				logged <- fmt.Sprintf("%s %s: %v", req.Params.Logger, req.Params.Level, data["msg"])
			},
		}, "job")
		p.checkTools("run_job")

		// Without a token and a level there are no notifications.
		var out jobOut
		p.call("run_job", map[string]any{"steps": 2, "seconds": 0.02}, &out)
		if (out != jobOut{"done", 2, 2}) || len(progress) > 0 || len(logged) > 0 {
			t.Errorf("%+v, %d progress notifications, %d log messages", out, len(progress), len(logged))
		}

		// Since 2026-07-28 each request has its log level.
		if version < "2026-07-28" {
			if err := p.SetLoggingLevel(p.ctx, &mcp.SetLoggingLevelParams{Level: "info"}); err != nil {
				t.Fatal(err)
			}
		}
		params := func(token string, args map[string]any) *mcp.CallToolParams {
			params := &mcp.CallToolParams{Name: "run_job", Arguments: args, Meta: mcp.Meta{mcp.MetaKeyLogLevel: "info"}}
			params.SetProgressToken(token)
			return params
		}
		result, err := p.CallTool(p.ctx, params("a", map[string]any{"steps": 3, "seconds": 0.03}))
		if err != nil {
			t.Fatal(err)
		}
		if unmarshal(t, result, &out); out != (jobOut{"done", 3, 3}) {
			t.Errorf("%+v", out)
		}
		for i := range 3 {
			if got, want := p.await("progress", progress), fmt.Sprintf("a: %d/3 step %d of 3", i+1, i+1); got != want {
				t.Errorf("progress %q, want %q", got, want)
			}
		}
		for _, want := range []string{"job info: job started", "job info: job done"} {
			if got := p.await("log message", logged); got != want {
				t.Errorf("log message %q, want %q", got, want)
			}
		}

		// The defaults are 10 steps in 10 seconds, so the job still runs after its first.
		ctx, cancel := context.WithCancel(p.ctx)
		failed := make(chan string, 1)
		go func() {
			_, err := p.CallTool(ctx, params("b", nil))
			failed <- fmt.Sprint(err)
		}()
		if got := p.await("progress", progress); got != "b: 1/10 step 1 of 10" {
			t.Errorf("progress %q", got)
		}
		// While it runs, the plug-in answers others.
		p.call("run_job", map[string]any{"steps": 1, "seconds": 0.01}, &out)
		cancel()
		if got := p.await("end of the call", failed); got != context.Canceled.Error() {
			t.Errorf("the cancelled call ends with %q", got)
		}
		report := p.await("report of the cancelled job", p.stderr)
		if !regexp.MustCompile(`job cancelled after [1-9] of 10 steps\n$`).MatchString(report) {
			t.Errorf("standard error: %q", report)
		}

		for _, args := range []map[string]any{{"steps": 0}, {"steps": 1001}, {"seconds": 0}, {"seconds": -1}} {
			if got := p.callError("run_job", args); !strings.Contains(got, "imum") {
				t.Errorf("run_job %v: %q does not name the limit", args, got)
			}
		}
	})
}

// EXAMPLES_DICE is the path of dice/dist/dice.js, which npm builds.
func TestDice(t *testing.T) {
	t.Parallel()
	script := os.Getenv("EXAMPLES_DICE")
	if script == "" {
		t.Skip("EXAMPLES_DICE is not set")
	}
	p := start(t, "", nil, "node", script)
	p.checkTools("flip_coin", "roll_dice")
	for range 20 {
		var dice struct {
			Rolls []int
			Total int
		}
		p.call("roll_dice", map[string]any{"sides": 4, "count": 3}, &dice)
		if r := dice.Rolls; len(r) != 3 || slices.Min(r) < 1 || slices.Max(r) > 4 || dice.Total != r[0]+r[1]+r[2] {
			t.Errorf("roll_dice: %+v", dice)
		}
		var coin struct{ Side string }
		if p.call("flip_coin", map[string]any{}, &coin); coin.Side != "heads" && coin.Side != "tails" {
			t.Errorf("flip_coin: %+v", coin)
		}
	}
	var one struct {
		Rolls []int
		Total int
	}
	if p.call("roll_dice", map[string]any{}, &one); len(one.Rolls) != 1 || one.Total > 6 {
		t.Errorf("roll_dice without arguments: %+v", one)
	}
	if got := p.callError("roll_dice", map[string]any{"sides": 1}); !strings.Contains(got, "sides") {
		t.Errorf("roll_dice with one side: %q", got)
	}
}

// The program in docs/plugins.md compiles, and answers.
func TestProgramOfDocument(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/plugins.md")
	if err != nil {
		t.Fatal(err)
	}
	code := regexp.MustCompile("(?s)```go\n(.*?)```").FindSubmatch(doc)
	if code == nil {
		t.Fatal("docs/plugins.md has no program")
	}
	source, program := filepath.Join(t.TempDir(), "main.go"), filepath.Join(t.TempDir(), "dice")
	if err := os.WriteFile(source, code[1], 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", program, source).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p := start(t, "", nil, program)
	var out struct{ Roll int }
	if p.call("roll", map[string]any{"sides": 4}, &out); out.Roll < 1 || out.Roll > 4 {
		t.Errorf("rolled %d", out.Roll)
	}
}

// Each example has a manifest whose command is the program that make builds.
func TestManifests(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile(`(?m)^command: \[(.+)\]$`)
	n := 0
	for _, e := range entries {
		if !e.IsDir() || e.Name() == "manifests" {
			continue
		}
		n++
		manifest, err := os.ReadFile(filepath.Join("manifests", e.Name()+".yaml"))
		if err != nil {
			t.Error(err)
			continue
		}
		want := filepath.Join("..", "..", "bin", "plugins", e.Name())
		if e.Name() == "dice" {
			want = filepath.Join("dice", "dist", "dice.js")
		}
		m := command.FindSubmatch(manifest)
		if m == nil || !slices.ContainsFunc(strings.Split(string(m[1]), ", "), func(arg string) bool {
			return filepath.Join("manifests", arg) == want
		}) {
			t.Errorf("the command of manifests/%s.yaml does not name %s", e.Name(), want)
		}
	}
	if n != 5 {
		t.Errorf("%d examples, want 5", n)
	}
}
