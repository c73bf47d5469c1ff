package voice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetd/broker/voice/voicetest"
	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/outbound"
)

func someTools(n, size int) (tools []fleet.Tool) {
	for i := range n {
		tools = append(tools, fleet.Tool{Name: fmt.Sprintf("self.tool_%02d", i), Description: strings.Repeat("d", size),
			InputSchema: json.RawMessage(`{"type":"object","properties":{}}`), Audience: fleet.AudienceModel})
	}
	return tools
}

// mcpWorld returns a conversation whose upstream has listed the tools.
func mcpWorld(t *testing.T, o voicetest.Options, tools []fleet.Tool, change func(*Options)) (*world, *board,
	*voicetest.Session) {
	t.Helper()
	o.MCP = true
	up := server(t, o)
	w := start(t, up.URL(false), change)
	w.calls.tools = tools
	b := newBoard(t, 1)
	b.talk(w.Relay, boardHello)
	b.open()
	s := first(t, up)
	fleettest.Eventually(t, "the tools are listed", s.Listed)
	return w, b, s
}

// The upstream lists the tools on record, in pages, and the device receives none of its MCP
// messages.
func TestUpstreamListsTools(t *testing.T) {
	_, b, s := mcpWorld(t, voicetest.Options{}, someTools(40, 800), nil)
	var want []string
	for _, tool := range someTools(40, 0) {
		want = append(want, tool.Name)
	}
	if got := s.Tools(); !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	if faults := s.Faults(); len(faults) > 0 {
		t.Error(faults)
	}
	if got := b.types(); !slices.Equal(got, []string{"hello"}) {
		t.Errorf("the device got %v", b.got())
	}
}

// A server may begin MCP before it answers hello.
func TestUpstreamListsToolsBeforeItsHello(t *testing.T) {
	_, _, s := mcpWorld(t, voicetest.Options{HelloAfter: 50 * time.Millisecond}, someTools(3, 10), nil)
	if len(s.Tools()) != 3 {
		t.Error(s.Tools())
	}
}

// The tools of a device that has just connected may not be on record yet.
func TestUpstreamListsToolsOfAJoiningDevice(t *testing.T) {
	up := server(t, voicetest.Options{MCP: true})
	w := start(t, up.URL(false), nil)
	w.calls.tools, w.calls.unlisted = someTools(3, 10), 3
	newBoard(t, 1).talk(w.Relay, boardHello)
	s := first(t, up)
	fleettest.Eventually(t, "the tools are listed", s.Listed)
	if len(s.Tools()) != 3 {
		t.Error(s.Tools())
	}
}

func TestUpstreamCallsTool(t *testing.T) {
	w, b, s := mcpWorld(t, voicetest.Options{}, someTools(1, 10), nil)
	for i := range 3 { // ids 1 and 2 are used a second time
		a, err := s.Call("self.audio_speaker.set_volume", fmt.Sprintf(`{"volume":%d}`, i), deadline)
		if err != nil || a.ID != i+1 || a.Error != nil ||
			fleet.ResultText(a.Result) != "self.audio_speaker.set_volume" {
			t.Fatalf("%+v, %v", a, err)
		}
	}
	r := w.calls.made[1]
	p := r.Actor
	if r.Device != b.id || r.Tool != "self.audio_speaker.set_volume" || string(r.Arguments) != `{"volume":1}` ||
		p.Kind != fleet.KindVoice || p.Name != "lab" || p.Role != fleet.RoleOperator {
		t.Errorf("%+v", r)
	}
	b.conversation.Receive("goodbye", b.session, nil)
	fleettest.Eventually(t, "it is on record", func() bool {
		n, _ := w.records.ended(fleet.EndedByDevice)
		return n == 1
	})
	if _, c := w.records.ended(fleet.EndedByDevice); c.Calls != 3 || c.ID.String() != p.ID {
		t.Errorf("%+v, principal %+v", c, p)
	}
}

func TestUpstreamCallThatFails(t *testing.T) {
	refusal := &fleet.CallError{Code: "user_only"}
	over := make(chan struct{})
	tests := []struct {
		name    string
		timeout time.Duration // of the upstream
		make    func(context.Context, call.Request) (fleet.Call, error)
		want    string
	}{
		{"refused", deadline, func(context.Context, call.Request) (fleet.Call, error) {
			return fleet.Call{State: fleet.CallRefused, Error: refusal}, nil
		}, "call user_only"},
		{"no record", deadline, func(context.Context, call.Request) (fleet.Call, error) {
			return fleet.Call{}, errors.New("stopping")
		}, "error stopping"},
		{"error of the device", deadline, func(context.Context, call.Request) (fleet.Call, error) {
			return fleet.Call{State: fleet.CallToolError, Error: &fleet.CallError{Code: fleet.CodeToolError}}, nil
		}, "call tool_error"},
		{"no answer in the upstream's time", 200 * time.Millisecond, func(context.Context, call.Request) (fleet.Call, error) {
			<-over
			return fleet.Call{State: fleet.CallSucceeded}, nil
		}, "call no_answer"},
	}
	for _, tt := range tests {
		w, _, s := mcpWorld(t, voicetest.Options{}, someTools(1, 10), func(o *Options) { o.CallTimeout = tt.timeout })
		w.calls.mu.Lock()
		w.calls.make = tt.make
		w.calls.mu.Unlock()
		a, err := s.Call("self.reboot", `{}`, deadline)
		if err != nil || a.Error == nil || a.Error.Message != tt.want || a.Result != nil {
			t.Errorf("%s: %+v, %v", tt.name, a, err)
		}
	}
	close(over)
}

// A device's error message reaches the model of xiaozhi-esp32-server, which does not read the
// content of such a result. Other MCP clients get the result unchanged.
func TestToolErrorReachesTheModel(t *testing.T) {
	failed := json.RawMessage(`{"content":[{"type":"text","text":"the door is open"}],"isError":true}`)
	answeredFalse := json.RawMessage(`{"content":[{"type":"text","text":"false"}],"isError":false}`)
	for _, tt := range []struct {
		client string
		result json.RawMessage
		want   string // in a JSON-RPC error; "": result
		heard  string // by xiaozhi-esp32-server
	}{
		{"XiaozhiClient", failed, "call tool_error", "MCP错误: call tool_error"},
		{"XiaozhiClient", answeredFalse, "", "false"},
		{"py-client", failed, "", ""},
	} {
		w, _, s := mcpWorld(t, voicetest.Options{Client: tt.client}, someTools(1, 10), nil)
		w.calls.mu.Lock()
		w.calls.make = func(context.Context, call.Request) (fleet.Call, error) {
			return fleet.Call{State: fleet.CallToolError, Result: tt.result,
				Error: &fleet.CallError{Code: fleet.CodeToolError, Message: "the door is open"}}, nil
		}
		w.calls.mu.Unlock()
		a, err := s.Call("self.tool_00", `{}`, deadline)
		switch {
		case err != nil:
			t.Fatal(err)
		case tt.want == "" && (a.Error != nil || string(a.Result) != string(tt.result)),
			tt.want != "" && (a.Error == nil || a.Error.Message != tt.want || a.Result != nil),
			tt.heard != "" && a.Heard() != tt.heard:
			t.Errorf("%s, %s: %+v, heard %q", tt.client, tt.result, a, a.Heard())
		}
	}
}

// An upstream that sends too many requests gets a refusal for the excess.
func TestUpstreamFloodsWithCalls(t *testing.T) {
	w, _, s := mcpWorld(t, voicetest.Options{}, someTools(1, 10), nil)
	release := make(chan struct{})
	w.calls.mu.Lock()
	w.calls.make = func(context.Context, call.Request) (fleet.Call, error) {
		<-release
		return fleet.Call{State: fleet.CallSucceeded}, nil
	}
	w.calls.mu.Unlock()
	answers := make(chan voicetest.RPC)
	for range maxAsking + 5 {
		go func() {
			a, _ := s.Call("self.tool_00", `{}`, deadline)
			answers <- a
		}()
	}
	for range 5 {
		if a := <-answers; a.Error == nil || a.Error.Message != "call "+fleet.CodeBusy {
			t.Errorf("%+v", a)
		}
	}
	close(release)
	for range maxAsking {
		if a := <-answers; a.Error != nil {
			t.Errorf("%+v", a)
		}
	}
}

func TestMCPThatIsNoRequest(t *testing.T) {
	_, b, s := mcpWorld(t, voicetest.Options{}, someTools(1, 10), nil)
	for _, payload := range []string{`{"jsonrpc":"2.0","method":"notifications/initialized"}`, `[]`, `null`, `1`,
		`{"jsonrpc":"1.0","id":7,"method":"tools/list"}`, `{"jsonrpc":"2.0","id":null,"method":"tools/list"}`,
		`{"jsonrpc":"2.0","id":5,"result":{}}`, `{}`} {
		_ = s.Send(`{"type":"mcp","payload":` + payload + `}`)
	}
	_ = s.Send(`{"type":"mcp"}`)
	a, err := s.Call("self.tool_00", `[]`, deadline)
	if err != nil || a.Error == nil || a.Error.Code != codeParams {
		t.Errorf("%+v, %v", a, err)
	}
	_ = s.Send(`{"type":"mcp","payload":{"jsonrpc":"2.0","id":99,"method":"resources/list"}}`)
	_ = s.Send(`{"type":"mcp","payload":{"jsonrpc":"2.0","id":98,"method":"tools/list","params":{"cursor":"none"}}}`)
	time.Sleep(20 * time.Millisecond)
	if got := b.types(); !slices.Equal(got, []string{"hello"}) {
		t.Errorf("the device got %v", got)
	}
}

// A model that may not call tools sees none, and gets the reason if it calls one anyway.
func TestUpstreamWithoutTools(t *testing.T) {
	w, _, s := mcpWorld(t, voicetest.Options{}, someTools(3, 10), func(o *Options) { o.Upstream.NoTools = true })
	if len(s.Tools()) != 0 {
		t.Errorf("the model sees %v", s.Tools())
	}
	a, err := s.Call("self.audio_speaker.set_volume", `{"volume":1}`, deadline)
	if err != nil || a.Error == nil || a.Error.Message != "error voice_no_tools" || len(w.calls.made) != 0 {
		t.Errorf("%+v, %v, %d calls", a, err, len(w.calls.made))
	}
}

func TestVisionOfTheConversation(t *testing.T) {
	for address, ok := range map[string]bool{"http://192.0.2.7:8003/mcp/vision/explain": true,
		"https://u:p@192.0.2.7/": false, "file:///etc/passwd": false, "ftp://192.0.2.7/": false} {
		w, b, s := mcpWorld(t, voicetest.Options{Vision: address}, someTools(1, 10), nil)
		if _, err := s.Call("self.camera.take_photo", `{}`, deadline); err != nil {
			t.Fatal(err)
		}
		id := w.calls.made[0].Actor.ID
		v, found := w.Vision(id, b.id)
		if found != ok || ok && (v.URL != address || v.Token != "t") {
			t.Errorf("%s: %+v, %v", address, v, found)
		}
		if _, found := w.Vision(id, "020000000099"); found {
			t.Error("another device's pictures go there")
		}
		if ok {
			if _, err := v.Dial(t.Context(), "tcp", "[::1]:9"); !errors.Is(err, outbound.ErrNotAllowed) {
				t.Errorf("it may lead to this machine: %v", err)
			}
		}
		b.conversation.Receive("goodbye", b.session, nil)
		fleettest.Eventually(t, "it is over", func() bool { _, found := w.Vision(id, b.id); return !found })
	}
}
