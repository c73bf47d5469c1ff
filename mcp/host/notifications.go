package host

//lint:file-ignore SA1019 servers before 2026-07-28 send log messages

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
)

// options are the handlers of what the server sends.
func (s *session) options() *sdk.ClientOptions {
	host := s.unit.host
	lists := func() {
		s.countAgain()
		host.changed(Change{Device: s.unit.id, Lists: true})
	}
	return &sdk.ClientOptions{
		Logger:                     nil,
		Capabilities:               &sdk.ClientCapabilities{}, // no roots, no sampling, no elicitation
		MultiRoundTrip:             &sdk.MultiRoundTripOptions{Disabled: true},
		ToolListChangedHandler:     func(context.Context, *sdk.ToolListChangedRequest) { s.listAgain() },
		PromptListChangedHandler:   func(context.Context, *sdk.PromptListChangedRequest) { lists() },
		ResourceListChangedHandler: func(context.Context, *sdk.ResourceListChangedRequest) { lists() },
		ResourceUpdatedHandler: func(_ context.Context, r *sdk.ResourceUpdatedNotificationRequest) {
			host.changed(Change{Device: s.unit.id, Updated: r.Params.URI})
		},
		LoggingMessageHandler: func(_ context.Context, r *sdk.LoggingMessageRequest) { s.logged(r.Params) },
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) {
			s.progressed(r.Params)
		},
	}
}

// refuse answers requests of the server that need a model or a user.
func refuse(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
		switch method {
		case "sampling/createMessage", "elicitation/create", "roots/list":
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound,
				Message: fmt.Sprintf("%s is refused: fleetd has no model, no user and no files for its plug-ins", method)}
		}
		return next(ctx, method, r)
	}
}

// setLogLevel asks for log messages.
func (s *session) setLogLevel(ctx context.Context) {
	if caps := s.capabilities(); caps.Logging == nil || s.protocol() >= "2026-07-28" {
		return
	}
	if err := s.client.SetLoggingLevel(ctx, &sdk.SetLoggingLevelParams{Level: logLevel}); err != nil {
		s.unit.note("warning", "logging/setLevel: "+err.Error())
	}
}

const logLevel sdk.LoggingLevel = "info"

// maxLogBytes bounds a log message that is passed on.
const maxLogBytes = 8 << 10

func (s *session) logged(p *sdk.LoggingMessageParams) {
	data, err := json.Marshal(p.Data)
	if err != nil || len(data) > maxLogBytes {
		data, _ = json.Marshal(fmt.Sprintf("a log message of %d bytes", len(data)))
	}
	text := string(data)
	var plain string
	if json.Unmarshal(data, &plain) == nil {
		text = plain
	}
	level := sdk.LoggingLevel(fleet.CleanText(string(p.Level), 20))
	s.unit.note(string(level), text)
	s.unit.host.changed(Change{Device: s.unit.id, Log: &Log{Level: level,
		Logger: fleet.CleanText(p.Logger, 100), Data: data}})
}

func (s *session) progressed(p *sdk.ProgressNotificationParams) {
	token, _ := p.ProgressToken.(string)
	s.mu.Lock()
	report := s.progress[token]
	s.mu.Unlock()
	if report != nil {
		report(fleet.Progress{Done: p.Progress, Total: p.Total, Message: fleet.CleanText(p.Message, 500)})
	}
}
