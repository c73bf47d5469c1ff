package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// ReadUsual reports whether a request is a usual call.
func ReadUsual(header http.Header, body string) bool {
	var u usualCall
	if !u.read(&http.Request{Header: header}, []byte(body)) {
		return false
	}
	_, ok := readCallIn(u.arguments)
	return ok
}

// CompareUsual lists the differences between a usual call and the reading of the SDK and
// encoding/json. It accepts any other body, which the SDK handles.
func CompareUsual(body string) (problems []string) {
	var u usualCall
	if !u.readMessage([]byte(body)) {
		return nil
	}
	in, ok := readCallIn(u.arguments)
	if !ok {
		return nil
	}
	m, err := jsonrpc.DecodeMessage([]byte(body))
	r, is := m.(*jsonrpc.Request)
	if err != nil || !is || !r.IsCall() || r.Method != "tools/call" {
		return []string{fmt.Sprintf("the SDK reads %T %v (%v)", m, m, err)}
	}
	same := func(what string, got, want any) {
		if !reflect.DeepEqual(got, want) {
			problems = append(problems, fmt.Sprintf("%s %#v, by the SDK %#v", what, got, want))
		}
	}
	var id any
	if err := json.Unmarshal(u.id, &id); err != nil {
		return []string{err.Error()}
	}
	wantID, err := jsonrpc.MakeID(id)
	same("id", wantID, r.ID)
	same("error of the id", err, nil)
	var params mcp.CallToolParamsRaw
	if err := json.Unmarshal(r.Params, &params); err != nil {
		return append(problems, err.Error())
	}
	same("name", string(u.name), params.Name)
	token := params.GetProgressToken()
	same("progress", u.progress, token != nil)
	for key := range params.Meta {
		same("_meta of the protocol", strings.HasPrefix(key, ofProtocol), false)
	}
	var want callIn
	d := json.NewDecoder(bytes.NewReader(params.Arguments)) // as decode does
	d.DisallowUnknownFields()
	if err := d.Decode(&want); err != nil {
		return append(problems, err.Error())
	}
	same("arguments", in, want)
	same("complete", want.complete(), true)
	return problems
}

// Sessions returns the number of open sessions.
func (g *Gateway) Sessions() int {
	g.sessions.mu.Lock()
	defer g.sessions.mu.Unlock()
	return len(g.sessions.slots)
}

// Streams returns the number of open streams.
func (g *Gateway) Streams() (n int) {
	g.sessions.mu.Lock()
	defer g.sessions.mu.Unlock()
	for _, open := range g.sessions.streams {
		n += open
	}
	return n
}
