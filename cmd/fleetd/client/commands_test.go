package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// commands are the commands that the tests run, declared as in the program.
type commands struct {
	Device    DeviceCommand    `cmd:""`
	Devices   DevicesCommand   `cmd:""`
	Call      CallCommand      `cmd:""`
	Upstream  UpstreamCommand  `cmd:""`
	Plugin    PluginCommand    `cmd:"" aliases:"plugins"`
	Policy    PolicyCommand    `cmd:""`
	Schedule  ScheduleCommand  `cmd:""`
	LogStream LogStreamCommand `cmd:""`
	Redaction RedactionCommand `cmd:""`
	Approval  ApprovalCommand  `cmd:""`
	System    SystemCommand    `cmd:""`
	History   HistoryCommand   `cmd:""`
	Changes   ChangesCommand   `cmd:""`
	Place     PlaceCommand     `cmd:"" aliases:"places"`
	Snapshot  SnapshotCommand  `cmd:""`
}

// A rest is a server that answers from a script and records the requests.
type rest struct {
	*httptest.Server
	answers map[string]string // "GET /path" to JSON; "409 {...}" for a failure
	asked   []string          // "GET /path?query body"
}

func newREST(t *testing.T, answers map[string]string) *rest {
	s := &rest{answers: answers}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		path := strings.TrimPrefix(r.URL.Path, "/api/v1")
		at := path
		if r.URL.RawQuery != "" {
			at += "?" + r.URL.RawQuery
		}
		s.asked = append(s.asked, strings.TrimSpace(r.Method+" "+at+" "+string(body)))
		if r.Header.Get("Authorization") != "Bearer flt_good" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		answer, ok := s.answers[r.Method+" "+path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if text, failed := strings.CutPrefix(answer, "409 "); failed {
			w.WriteHeader(http.StatusConflict)
			answer = text
		}
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(s.Close)
	return s
}

// run parses a command line, runs it against the server, and returns what it
// printed.
func (s *rest) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	s.asked = nil
	var c commands
	parser, err := kong.New(&c, kong.BindTo(t.Context(), (*context.Context)(nil)), kong.Exit(func(int) {}))
	if err != nil {
		t.Fatal(err)
	}
	command, err := parser.Parse(append(args, "--url", s.URL, "--token", "flt_good"))
	if err != nil {
		return "", err
	}
	out, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	stdout := os.Stdout
	os.Stdout = out
	err = command.Run()
	os.Stdout = stdout
	printed, _ := os.ReadFile(out.Name())
	return string(printed), err
}

// A commandTest runs a command line, and lists the requests that the server
// must get.
type commandTest struct {
	args    []string
	asks    []string
	prints  string // part of it
	failure string // part of the error; "" for none
}

func testCommands(t *testing.T, s *rest, tests []commandTest) {
	t.Helper()
	for _, tt := range tests {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			printed, err := s.run(t, tt.args...)
			if tt.failure == "" && err != nil || tt.failure != "" && (err == nil ||
				!strings.Contains(err.Error(), tt.failure)) {
				t.Errorf("the error is %v, want %q", err, tt.failure)
			}
			if !slices.Equal(s.asked, tt.asks) {
				t.Errorf("the server was asked %q, want %q", s.asked, tt.asks)
			}
			if !strings.Contains(printed, tt.prints) {
				t.Errorf("printed %q, want %q in it", printed, tt.prints)
			}
		})
	}
}

func TestPluginCommands(t *testing.T) {
	const one = `{"name":"weather","state":"running","source":"database","device_id":"plugin.weather"}`
	s := newREST(t, map[string]string{"GET /plugins": `{"items":[` + one + `]}`, "GET /plugins/weather": one,
		"GET /plugins/weather/log": `{"items":[{"number":7,"source":"stderr","text":"hello"}]}`,
		"POST /plugins":            one, "POST /plugins/weather/restart": one, "DELETE /plugins/weather": ``,
		"DELETE /plugins/file": `409 {"status":409,"code":"plugin_of_file","detail":"it is defined by a file"}`})
	testCommands(t, s, []commandTest{
		{args: []string{"plugins", "list"}, asks: []string{"GET /plugins"}, prints: "plugin.weather"},
		{args: []string{"plugins", "show", "weather"}, asks: []string{"GET /plugins/weather"}, prints: "running"},
		{args: []string{"plugins", "log", "weather"}, asks: []string{"GET /plugins/weather/log?after=0"}, prints: "hello"},
		{args: []string{"plugin", "reload", "weather"}, asks: []string{"POST /plugins/weather/restart {}"}, prints: "running"},
		{args: []string{"plugins", "add", "weather", "./weather", "--memory", "64MiB", "--cpu", "0.5", "--env", "A=b=c", "--tools", "get_*"},
			asks: []string{`POST /plugins {"audience":"model","command":["./weather"],"env":{"A":"b=c"},"limits":{"cpu":0.5,"memory":"64MiB"},"name":"weather","tools":["get_*"]}`}},
		{args: []string{"plugins", "add", "weather", "--address", "https://x.test/mcp"},
			asks: []string{`POST /plugins {"audience":"model","name":"weather","url":"https://x.test/mcp"}`}},
		{args: []string{"plugins", "add", "weather", "./weather", "--env", "A"}, failure: "NAME=value"},
		{args: []string{"plugins", "remove", "weather"}, asks: []string{"DELETE /plugins/weather"}},
		{args: []string{"plugins", "remove", "file"}, asks: []string{"DELETE /plugins/file"}, failure: "it is defined by a file (plugin_of_file)"},
	})
}

func TestUpstreamCommands(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("hush\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const one = `{"id":"u1","name":"lab","kind":"websocket","url":"ws://lab:8000/","enabled":true,"position":0,"health":{}}`
	s := newREST(t, map[string]string{"GET /upstreams": `{"items":[` + one + `],"version":3}`, "POST /upstreams": one,
		"PATCH /upstreams/u1": one, "DELETE /upstreams/u1": ``, "POST /upstreams/u1/check": `{"ok":true,"took_ms":12}`,
		"POST /upstreams/u2/check": `{"ok":false,"message":"no answer"}`,
		"GET /upstreams/match":     `{"steps":[{"name":"lab","outcome":"fits","term":""}]}`,
		"DELETE /upstreams/flag":   `409 {"status":409,"code":"upstream_fixed","detail":"it is set by a flag"}`})
	testCommands(t, s, []commandTest{
		{args: []string{"upstream", "list"}, asks: []string{"GET /upstreams"}, prints: "ws://lab:8000/"},
		{args: []string{"upstream", "add", "lab", "ws://lab:8000/", "-q", "tag:lab", "--no-tools", "--position", "0"},
			asks:   []string{`POST /upstreams {"devices":"tag:lab","kind":"websocket","name":"lab","position":0,"tools":false,"url":"ws://lab:8000/"}`},
			prints: `"u1"`},
		{args: []string{"upstream", "set", "u1", "--secret-file", secret},
			asks: []string{`PATCH /upstreams/u1 {"secret":"hush"}`}},
		{args: []string{"upstream", "set", "u1", "--secret-file", secret, "--secret", "other"}, failure: "both set"},
		{args: []string{"upstream", "set", "u1", "--no-enabled", "--if-version", "3"},
			asks: []string{`PATCH /upstreams/u1 {"enabled":false,"version":3}`}},
		{args: []string{"upstream", "remove", "u1"}, asks: []string{"DELETE /upstreams/u1"}},
		{args: []string{"upstream", "remove", "flag"}, asks: []string{"DELETE /upstreams/flag"},
			failure: "it is set by a flag (upstream_fixed)"},
		{args: []string{"upstream", "check", "u1"}, asks: []string{"POST /upstreams/u1/check {}"}, prints: "12"},
		{args: []string{"upstream", "check", "u2"}, asks: []string{"POST /upstreams/u2/check {}"}, failure: "no answer"},
		{args: []string{"upstream", "match", "a0:85:e3:11:22:33"},
			asks: []string{"GET /upstreams/match?device=a0%3A85%3Ae3%3A11%3A22%3A33"}, prints: "fits"},
		{args: []string{"upstream", "add", "lab", "--kind", "telephone"}, failure: "telephone"},
		{args: []string{"upstream", "add"}, failure: "<name>"},
	})
}

func TestTransportCommand(t *testing.T) {
	device := func(id, choice string) string {
		b, _ := json.Marshal(map[string]string{"id": id, "transport_choice": choice})
		return string(b)
	}
	s := newREST(t, map[string]string{
		"GET /devices":          `{"items":[` + device("d1", "mqtt") + `,` + device("d2", "ws") + `],"next_cursor":null}`,
		"PATCH /devices/d1":     device("d1", "ws"),
		"GET /devices/d1":       device("d1", "mqtt"),
		"PATCH /devices/absent": `{}`})
	testCommands(t, s, []commandTest{
		// A device that has it already gets no request.
		{args: []string{"device", "transport", "ws", "tag:lab"}, asks: []string{"GET /devices?limit=500&q=tag%3Alab",
			`PATCH /devices/d1 {"transport_choice":"ws"}`}, prints: `"d1"`},
		{args: []string{"device", "transport", "mqtt", "tag:lab"}, asks: []string{"GET /devices?limit=500&q=tag%3Alab",
			`PATCH /devices/d2 {"transport_choice":"mqtt"}`}, failure: "404"},
		{args: []string{"device", "transport", "pigeon", "tag:lab"}, failure: "pigeon"},
		{args: []string{"device", "transport", "ws"}, failure: "<query>"},
	})
}

func TestMQTT5Commands(t *testing.T) {
	const made = `{"device_id":"lamp-1","broker":"fleet.example.org:8883","client_id":"lamp-1","username":"mcp.x","password":"hush"}`
	s := newREST(t, map[string]string{"POST /devices": made, "POST /devices/lamp-1/credentials": made,
		"DELETE /devices/lamp-1/credentials": ``, "POST /devices/board/credentials": `409 {"status":409,"code":"not_mqtt5","detail":"a board"}`})
	testCommands(t, s, []commandTest{
		{args: []string{"device", "create-mqtt5", "lamp-1", "--name", "Desk"},
			asks: []string{`POST /devices {"id":"lamp-1","name":"Desk"}`}, prints: `"hush"`},
		{args: []string{"device", "create-mqtt5", "lamp-1"}, asks: []string{`POST /devices {"id":"lamp-1"}`}, prints: `"mcp.x"`},
		{args: []string{"device", "reissue", "lamp-1"}, asks: []string{"POST /devices/lamp-1/credentials"}, prints: `"hush"`},
		{args: []string{"device", "reissue", "board"}, asks: []string{"POST /devices/board/credentials"}, failure: "a board (not_mqtt5)"},
		{args: []string{"device", "revoke", "lamp-1"}, asks: []string{"DELETE /devices/lamp-1/credentials"}},
		{args: []string{"device", "create-mqtt5"}, failure: "<id>"},
	})
}

func TestPolicyCommands(t *testing.T) {
	s := newREST(t, map[string]string{
		"GET /policies":       `{"items":[{"id":"p1","name":"nights","decision":"deny","enabled":true}],"otherwise":"allow"}`,
		"POST /policies/test": `{"items":[{"device_id":"d1","outcome":"denied","verdict":"deny"}]}`})
	testCommands(t, s, []commandTest{
		{args: []string{"policy", "list"}, asks: []string{"GET /policies"}, prints: "nights"},
		{args: []string{"policy", "test", "self.reboot", `{"a":1}`, "--device", "d1", "--role", "viewer"},
			asks:   []string{`POST /policies/test {"arguments":{"a":1},"device":"d1","principal":{"kind":"model","name":"","role":"viewer"},"q":"","tool":"self.reboot"}`},
			prints: "denied"},
		{args: []string{"policy", "test", "self.reboot", "--token-id", "t1"},
			asks: []string{`POST /policies/test {"arguments":{},"device":"","principal":{"token_id":"t1"},"q":"","tool":"self.reboot"}`}},
		{args: []string{"policy", "test", "self.reboot", "{"}, failure: "arguments are not JSON"},
		{args: []string{"policy", "test", "self.reboot", "--device", "d1", "-q", "tag:lab"}, failure: "can't be used together"},
	})
}

func TestApprovalCommands(t *testing.T) {
	const waiting = `{"id":"a1","state":"waiting","tool":"self.reboot","arguments":{},"asked_by":{"name":"claude"}}`
	s := newREST(t, map[string]string{"GET /approvals": `{"items":[` + waiting + `],"next_cursor":null}`,
		"POST /approvals/a1/approve": waiting,
		"POST /approvals/a1/deny":    `409 {"status":409,"code":"approval_decided","detail":"it was decided before"}`})
	testCommands(t, s, []commandTest{
		{args: []string{"approval", "list"}, asks: []string{"GET /approvals?limit=500&state=waiting"}, prints: "claude"},
		{args: []string{"approval", "list", "--state", "all", "--limit", "7"}, asks: []string{"GET /approvals?limit=7"}},
		{args: []string{"approval", "approve", "a1", "--reason", "fine"},
			asks: []string{`POST /approvals/a1/approve {"reason":"fine"}`}, prints: `"a1"`},
		{args: []string{"approval", "deny", "a1", "not now"}, asks: []string{`POST /approvals/a1/deny {"reason":"not now"}`},
			failure: "it was decided before (approval_decided)"},
		{args: []string{"approval", "list", "--state", "odd"}, failure: "odd"},
	})
}

func TestCallCommands(t *testing.T) {
	const waiting = `{"id":"c1","device_id":"a085e3112233","tool":"self.reboot","arguments":{},"actor":{"name":"claude"},` +
		`"state":"pending_device","created_at":"2026-11-24T20:00:00Z","wait_until":"2026-11-25T20:00:00Z"}`
	s := newREST(t, map[string]string{"GET /calls": `{"items":[` + waiting + `],"next_cursor":null}`,
		"POST /calls/c1/cancel": strings.Replace(waiting, "pending_device", "canceled", 1),
		"POST /calls/c2/cancel": `409 {"status":409,"code":"call_not_waiting","detail":"it is succeeded"}`})
	testCommands(t, s, []commandTest{
		{args: []string{"call", "list", "--device", "a085e3112233", "--state", "pending_device"},
			asks: []string{"GET /calls?device=a085e3112233&limit=100&state=pending_device"}, prints: "claude"},
		{args: []string{"call", "list", "--tool", "self.reboot", "--limit", "7"},
			asks: []string{"GET /calls?limit=7&tool=self.reboot"}},
		{args: []string{"call", "list", "--fanout", "f1"}, asks: []string{"GET /calls?fanout=f1&limit=100"}},
		{args: []string{"call", "cancel", "c1"}, asks: []string{"POST /calls/c1/cancel"}, prints: "canceled"},
		{args: []string{"call", "cancel", "c2"}, asks: []string{"POST /calls/c2/cancel"},
			failure: "it is succeeded (call_not_waiting)"},
	})
}

func TestBulkCallCommand(t *testing.T) {
	s := newREST(t, map[string]string{"POST /fanouts": `{"id":"f1","tool":"self.x","state":"running","targets":3}`})
	testCommands(t, s, []commandTest{
		{args: []string{"devices", "call", "--query=tag:lab", "self.x", `{"n":12345678901234567890}`},
			asks: []string{`POST /fanouts {"arguments":{"n":12345678901234567890},"dry_run":false,"interrupt":false,` +
				`"max_in_flight":0,"q":"tag:lab","tool":"self.x"}`}, prints: "running"},
		{args: []string{"devices", "call", "--id=a,b", "--offline-wait=1h", "--interrupt", "--confirm=3", "--timeout=2s",
			"--purpose=night", "--max-in-flight=5", "self.x"},
			asks: []string{`POST /fanouts {"arguments":{},"confirm":3,"devices":["a","b"],"dry_run":false,"interrupt":true,` +
				`"max_in_flight":5,"offline":"wait","offline_wait_ms":3600000,"purpose":"night","timeout_ms":2000,"tool":"self.x"}`}},
		{args: []string{"devices", "call", "--query=", "self.x", `[1]`}, failure: "not a JSON object"},
		{args: []string{"devices", "call", "--query=", "self.x", `{`}, failure: "not a JSON object"},
	})
}

func TestSystemCommand(t *testing.T) {
	s := newREST(t, map[string]string{"GET /system": `{"version":"1.2.3"}`})
	testCommands(t, s, []commandTest{{args: []string{"system"}, asks: []string{"GET /system"}, prints: "1.2.3"}})
}

func TestLogStreamCommands(t *testing.T) {
	const siem = `{"id":"l1","name":"siem","kind":"webhook","url":"https://a.example/…","enabled":true,"next_entry":7,"lag_entries":2}`
	s := newREST(t, map[string]string{"GET /log-streams": `{"items":[` + siem + `],"next_cursor":null}`,
		"GET /log-streams/l1": strings.TrimSuffix(siem, "}") + `,"deliveries":[{"ok":false,"message":"the receiver responded with status 500"}]}`,
		"POST /log-streams":   strings.TrimSuffix(siem, "}") + `,"secret":"whsec_c2Vj"}`, "PATCH /log-streams/l1": siem,
		"POST /log-streams/l1/test":   `{"ok":false,"message":"the receiver responded with status 500"}`,
		"POST /log-streams/l1/replay": `{"next_entry":4}`, "DELETE /log-streams/l1": ``})
	testCommands(t, s, []commandTest{
		{args: []string{"log-stream"}, asks: []string{"GET /log-streams?limit=500"}, prints: "siem"},
		{args: []string{"log-stream", "create", "siem", "webhook", "https://a.example/", "--header", "A: b, c", "--header", "D: e",
			"--entry-kind", "call,action", "--outcome", "timed_out", "--from", "start"},
			asks:   []string{`POST /log-streams {"filter":{"actions":[],"devices":[],"kinds":["call","action"],"outcomes":["timed_out"]},"from":"start","headers":"A: b, c\nD: e","kind":"webhook","name":"siem","url":"https://a.example/"}`},
			prints: "whsec_c2Vj"},
		{args: []string{"log-stream", "create", "siem", "kafka", "https://a.example/"}, failure: "kafka"},
		{args: []string{"log-stream", "show", "l1"}, asks: []string{"GET /log-streams/l1"}, prints: "status 500"},
		{args: []string{"log-stream", "test", "l1"}, asks: []string{"POST /log-streams/l1/test"}, failure: "not delivered"},
		{args: []string{"log-stream", "replay", "l1", "2026-06-01T00:00:00Z"},
			asks: []string{`POST /log-streams/l1/replay {"from":"2026-06-01T00:00:00Z"}`}, prints: `"next_entry": 4`},
		{args: []string{"log-stream", "disable", "l1"}, asks: []string{`PATCH /log-streams/l1 {"enabled":false}`}},
		{args: []string{"log-stream", "enable", "l1"}, asks: []string{`PATCH /log-streams/l1 {"enabled":true}`}},
		{args: []string{"log-stream", "delete", "l1"}, asks: []string{"DELETE /log-streams/l1"}},
	})
}

func TestRedactionCommands(t *testing.T) {
	const rule = `{"id":"r1","tool":"self.wifi.*","path":"$.password","note":"","revision":3}`
	s := newREST(t, map[string]string{"GET /redaction/rules": `{"items":[` + rule + `],"next_cursor":null}`,
		"POST /redaction/rules": rule, "PATCH /redaction/rules/r1": rule, "DELETE /redaction/rules/r1": ``,
		"GET /calls": `{"items":[],"next_cursor":null}`})
	testCommands(t, s, []commandTest{
		{args: []string{"redaction"}, asks: []string{"GET /redaction/rules?limit=500"}, prints: "self.wifi.*"},
		{args: []string{"redaction", "create", "self.wifi.*", "$.password"},
			asks: []string{`POST /redaction/rules {"note":"","path":"$.password","tool":"self.wifi.*"}`}, prints: "$.password"},
		{args: []string{"redaction", "update", "r1", "--note", "n", "--revision", "3"},
			asks: []string{`PATCH /redaction/rules/r1 {"note":"n","revision":3}`}},
		{args: []string{"redaction", "update", "r1"}, failure: "nothing to change"},
		{args: []string{"redaction", "delete", "r1", "--revision", "3"}, asks: []string{"DELETE /redaction/rules/r1?revision=3"}},
		{args: []string{"call", "list", "--digest", "hmac-sha256:00112233445566778899aabbccddeeff"},
			asks: []string{"GET /calls?digest=hmac-sha256%3A00112233445566778899aabbccddeeff&limit=100"}},
	})
}

func TestScheduleCommands(t *testing.T) {
	const nightly = `{"id":"s1","name":"nightly","state":"active","cron":"0 2 * * *","time_zone":"UTC","q":"tag:lab","tool":"self.reboot"}`
	s := newREST(t, map[string]string{"GET /schedules": `{"items":[` + nightly + `],"next_cursor":null}`,
		"GET /schedules/s1":        nightly,
		"GET /schedules/s1/runs":   `{"items":[{"id":"r1","state":"missed","reason":{"code":"run_missed"}}],"next_cursor":null}`,
		"POST /schedules":          nightly,
		"POST /schedules/preview":  `{"instants":["2026-06-01T02:00:00Z"],"call":{"matched":3,"targets":2}}`,
		"POST /schedules/s1/pause": nightly, "POST /schedules/s1/resume": nightly,
		"POST /schedules/s1/run": `409 {"status":409,"code":"previous_running","detail":"it has not ended"}`,
		"DELETE /schedules/s1":   ``})
	const body = `{"arguments":{"a":1},"cron":"0 2 * * *","jitter_ms":600000,"max_in_flight":0,"name":"nightly","offline_wait_ms":0,"q":"tag:lab","time_zone":"UTC","timeout_ms":0,"tool":"self.reboot"}`
	create := []string{"schedule", "create", "nightly", "self.reboot", `{"a":1}`, "--cron", "0 2 * * *", "-q", "tag:lab",
		"--jitter", "10m"}
	testCommands(t, s, []commandTest{
		{args: []string{"schedule", "list"}, asks: []string{"GET /schedules?limit=500"}, prints: "nightly"},
		{args: create, asks: []string{"POST /schedules " + body}, prints: "nightly"},
		{args: append(create, "--dry-run"), asks: []string{"POST /schedules/preview " + body}, prints: "2026-06-01"},
		{args: []string{"schedule", "create", "x", "t", "{", "--cron", "* * * * *"}, failure: "arguments are not JSON"},
		{args: []string{"schedule", "create", "x", "t"}, failure: "--cron"},
		{args: []string{"schedule", "show", "s1", "--state", "missed"},
			asks: []string{"GET /schedules/s1", "GET /schedules/s1/runs?limit=20&state=missed"}, prints: "run_missed"},
		{args: []string{"schedule", "pause", "s1", "--note", "works"}, asks: []string{`POST /schedules/s1/pause {"note":"works"}`}},
		{args: []string{"schedule", "resume", "s1"}, asks: []string{"POST /schedules/s1/resume"}},
		{args: []string{"schedule", "run", "s1"}, asks: []string{"POST /schedules/s1/run"}, failure: "previous_running"},
		{args: []string{"schedule", "delete", "s1"}, asks: []string{"DELETE /schedules/s1"}},
	})
}
