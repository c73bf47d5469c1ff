package mcp_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetd/mcp"
)

// firmwareVectors is the folder from which the firmware's tests read the tables
// of this file.
const firmwareVectors = "../firmware/host/tests/vectors"

// Both ends use one table: the copies here equal the firmware's.
func TestVectorsAreTheFirmwares(t *testing.T) {
	copies, err := filepath.Glob("testdata/vectors/*.json")
	if err != nil || len(copies) < 6 {
		t.Fatalf("%d vectors, %v", len(copies), err)
	}
	for _, file := range copies {
		ours, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := os.ReadFile(filepath.Join(firmwareVectors, filepath.Base(file)))
		if err != nil || !bytes.Equal(ours, theirs) {
			t.Errorf("%s is another than the firmware's: %v", file, err)
		}
	}
}

func loadFirmware(t *testing.T, name string, into any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(firmwareVectors, name))
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// A unitMessage is a vector's request, read by a parser other than mcp's.
type unitMessage struct {
	Scope   mcp.Scope
	Payload struct {
		ID     json.RawMessage
		Method string
		Params json.RawMessage
	}
}

type unitParams struct {
	Name      string
	Arguments json.RawMessage
	Cursor    string
}

func (m unitMessage) id() int32 {
	var id int32
	if json.Unmarshal(m.Payload.ID, &id) != nil {
		return 0
	}
	return id
}

func (m unitMessage) params() (p unitParams) {
	_ = json.Unmarshal(m.Payload.Params, &p)
	return p
}

func unitRequest(wire string) (m unitMessage) {
	_ = json.Unmarshal([]byte(wire), &m) // a text without an envelope leaves m empty
	return m
}

// notOurSpelling names the vectors that mcp never writes, because it spells
// requests differently.
var notOurSpelling = map[string]bool{"members in another order": true, "no arguments at all": true}

// The firmware's C++ test gives these answers to these bytes. Here mcp sends the
// bytes and decodes the answers.
func TestFirmwareAnswers(t *testing.T) {
	var file struct {
		About string
		Cases []struct{ Name, Wire, Reply string }
	}
	loadFirmware(t, "unit_requests.json", &file)
	checks := map[string]func(*testing.T, unitMessage, string, string) string{
		"initialize": firmwareInitialize, "ping": firmwarePing, "tools/list": firmwareList, "tools/call": firmwareCall,
	}
	sent := 0
	for _, tt := range file.Cases {
		t.Run(tt.Name, func(t *testing.T) {
			m := unitRequest(tt.Wire)
			check := checks[m.Payload.Method]
			if check == nil {
				t.Fatalf("no check for %q", m.Payload.Method)
			}
			wire := check(t, m, tt.Wire, tt.Reply)
			if wire == tt.Wire {
				sent++
			} else if m.Payload.Method == "tools/call" && !notOurSpelling[tt.Name] {
				t.Errorf("sent %s, want %s", wire, tt.Wire)
			}
		})
	}
	if sent < 13 {
		t.Errorf("only %d of %d requests are as mcp sends them", sent, len(file.Cases))
	}
}

func firmwareInitialize(t *testing.T, m unitMessage, wire, reply string) string {
	var p struct {
		ClientInfo struct{ Name, Version string }
	}
	_ = json.Unmarshal(m.Payload.Params, &p)
	s, d := connect(mcp.SessionOptions{IDs: mcp.NewIDs(m.id() - 1)}, replies(reply))
	r, err := s.Initialize(t.Context(), mcp.InitializeParams{ClientName: p.ClientInfo.Name,
		ClientVersion: p.ClientInfo.Version})
	if err != nil {
		t.Fatal(err)
	}
	var want struct {
		Payload struct {
			Result struct {
				ProtocolVersion string
				ServerInfo      struct{ Name, Version string }
			}
		}
	}
	_ = json.Unmarshal([]byte(reply), &want)
	if w := want.Payload.Result; w.ServerInfo.Name == "" || r.ServerName != w.ServerInfo.Name ||
		r.ServerVersion != w.ServerInfo.Version || r.ProtocolVersion != w.ProtocolVersion {
		t.Errorf("Initialize = %+v, want %+v", r, w)
	}
	return d.sent[0]
}

// firmwarePing includes ids that mcp never issues: they return with another id,
// or not at all.
func firmwarePing(t *testing.T, m unitMessage, wire, reply string) string {
	var other []mcp.Answer
	s, d := connect(mcp.SessionOptions{
		IDs: mcp.NewIDs(max(m.id(), 1) - 1), OnUnmatched: func(a mcp.Answer) { other = append(other, a) },
	}, replies(reply))
	if m.id() > 0 {
		if err := s.Ping(t.Context()); err != nil || len(other) != 0 {
			t.Errorf("Ping = %v, and %v is left", err, other)
		}
		return d.sent[0]
	}
	d.deliver([]byte(reply))
	var id int64
	_ = json.Unmarshal(m.Payload.ID, &id)
	if len(other) != 1 || other[0].ID != id {
		t.Errorf("the answer to id %s is %+v", m.Payload.ID, other)
	}
	return ""
}

// firmwareList precedes a list that begins after the first page with a page that
// names its cursor.
func firmwareList(t *testing.T, m unitMessage, wire, reply string) string {
	const firstPage = `{"type":"mcp","payload":{"jsonrpc":"2.0","id":%d,"result":{"tools":[],"nextCursor":%q}}}`
	var params struct{ WithUserTools bool }
	_ = json.Unmarshal(m.Payload.Params, &params)
	answers, cursor := []string{reply}, m.params().Cursor
	if cursor != "" {
		answers = []string{fmt.Sprintf(firstPage, m.id()-1, cursor), reply}
	}
	s, d := connect(mcp.SessionOptions{IDs: mcp.NewIDs(m.id() - int32(len(answers)))}, replies(answers...))
	tools, err := s.ListTools(t.Context(), mcp.ListToolsParams{WithUserTools: params.WithUserTools})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(toolsIn(t, reply), tools); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
	return d.sent[len(d.sent)-1]
}

func toolsIn(t *testing.T, reply string) (tools []mcp.Tool) {
	var page struct {
		Payload struct {
			Result struct {
				Tools []struct {
					Name, Description string
					InputSchema       json.RawMessage
					Annotations       struct{ Audience []string }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(reply), &page); err != nil {
		t.Fatal(err)
	}
	for _, w := range page.Payload.Result.Tools {
		tools = append(tools, mcp.Tool{Name: w.Name, Description: w.Description, InputSchema: w.InputSchema,
			Audience: w.Annotations.Audience})
	}
	return tools
}

func firmwareCall(t *testing.T, m unitMessage, wire, reply string) string {
	p := m.params()
	s, d := connect(mcp.SessionOptions{}, replies(reply))
	r, err := s.Call(t.Context(), mcp.CallToolParams{ID: m.id(), Name: p.Name, Arguments: p.Arguments, Scope: m.Scope})
	if err != nil {
		t.Fatal(err)
	}
	var want struct{ Payload struct{ Result any } }
	_ = json.Unmarshal([]byte(reply), &want)
	var got any
	encoded, err := json.Marshal(r)
	if err != nil || json.Unmarshal(encoded, &got) != nil {
		t.Fatalf("result %s, %v", encoded, err)
	}
	if diff := cmp.Diff(want.Payload.Result, got); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	return d.sent[0]
}

type refusal struct {
	ID      json.RawMessage
	Code    int
	Message string
}

// reply is the firmware's answer, in the frame that all its answers have.
func (r refusal) reply() string {
	id, message := r.ID, new(bytes.Buffer)
	if len(id) == 0 {
		id = json.RawMessage("null")
	}
	enc := json.NewEncoder(message)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(r.Message)
	return fmt.Sprintf(`{"session_id":"","type":"mcp","payload":{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%s}}}`,
		id, r.Code, bytes.TrimSpace(message.Bytes()))
}

// mcp decodes each refusal of the firmware, with its code and message. Where mcp
// can build the call, it builds the same bytes that the firmware refused.
func TestFirmwareRefusals(t *testing.T) {
	var file struct {
		About string
		Cases []struct {
			Name, Wire string
			Error      refusal
		}
	}
	loadFirmware(t, "unit_refusals.json", &file)
	calls, codes := 0, map[int]int{}
	for _, tt := range file.Cases {
		t.Run(tt.Name, func(t *testing.T) {
			codes[tt.Error.Code]++
			if m := unitRequest(tt.Wire); m.Payload.Method == "tools/call" && refusedCall(t, m, tt.Wire, tt.Error) {
				calls++
				return
			}
			var got []mcp.Answer
			_, d := connect(mcp.SessionOptions{OnUnmatched: func(a mcp.Answer) { got = append(got, a) }}, nil)
			d.deliver([]byte(tt.Error.reply()))
			if len(got) != 1 {
				t.Fatalf("%d answers of %s", len(got), tt.Error.reply())
			}
			isRefusal(t, got[0].Err, tt.Error)
		})
	}
	if calls < 14 || len(file.Cases) < 50 || codes[-32001] < 2 || len(codes) < 5 {
		t.Errorf("%d of %d were calls of mcp's own, codes %v", calls, len(file.Cases), codes)
	}
}

// refusedCall makes the call of m; false if mcp would not send those bytes.
func refusedCall(t *testing.T, m unitMessage, wire string, want refusal) bool {
	p := m.params()
	s, d := connect(mcp.SessionOptions{}, replies(want.reply()))
	_, err := s.Call(t.Context(), mcp.CallToolParams{ID: m.id(), Name: p.Name, Arguments: p.Arguments, Scope: m.Scope})
	if errors.Is(err, mcp.ErrInvalid) || d.sent[0] != wire {
		return false
	}
	isRefusal(t, err, want)
	return true
}

func isRefusal(t *testing.T, err error, want refusal) {
	t.Helper()
	got, ok := errors.AsType[*mcp.Error](err)
	if !ok || got.Code != want.Code || !got.HasCode || got.Message != want.Message || got.Salvaged {
		t.Errorf("error %v, want %d %s", err, want.Code, want.Message)
	}
}
