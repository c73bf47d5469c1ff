package host

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// A server that asks for what needs a model, a user or files is refused, and reads why.
func TestRefusedRequestsOfServers(t *testing.T) {
	ends, server := sdk.NewInMemoryTransports()
	conn, err := server.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	read := func() jsonrpc.Message {
		t.Helper()
		m, err := conn.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	opened := make(chan error, 1)
	s := &session{unit: &unit{host: New(Options{})}}
	client := sdk.NewClient(&sdk.Implementation{Name: "fleetd", Version: "1"}, s.options())
	client.AddReceivingMiddleware(refuse)
	go func() {
		session, err := client.Connect(t.Context(), ends, &sdk.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
		if err == nil {
			t.Cleanup(func() { session.Close() })
		}
		opened <- err
	}()
	initialize, _ := read().(*jsonrpc.Request)
	if p := string(initialize.Params); strings.Contains(p, "sampling") || strings.Contains(p, "elicitation") {
		t.Errorf("the client offers %s", initialize.Params)
	}
	if err := conn.Write(t.Context(), &jsonrpc.Response{ID: initialize.ID, Result: json.RawMessage(
		`{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"raw","version":"1"}}`)}); err != nil {
		t.Fatal(err)
	}
	read() // notifications/initialized
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
	for method, params := range map[string]string{
		"sampling/createMessage": `{"messages":[],"maxTokens":1}`,
		"elicitation/create":     `{"mode":"form","message":"Your password?","requestedSchema":{"type":"object","properties":{}}}`,
		"roots/list":             `{}`,
	} {
		id, _ := jsonrpc.MakeID(method)
		if err := conn.Write(t.Context(), &jsonrpc.Request{ID: id, Method: method,
			Params: json.RawMessage(params)}); err != nil {
			t.Fatal(err)
		}
		answer, _ := read().(*jsonrpc.Response)
		refusal, is := errors.AsType[*jsonrpc.Error](answer.Error)
		if !is || refusal.Code != jsonrpc.CodeMethodNotFound || !strings.Contains(refusal.Message, method) {
			t.Errorf("%s: %v", method, answer.Error)
		}
	}
}
