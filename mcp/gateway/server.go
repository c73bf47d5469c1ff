package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/heavy"
	"fleetd/fleet/origin"
	"fleetd/fleet/outcome"
)

// newFleetServer makes the server of the whole fleet. Its list of tools never changes.
func (g *Gateway) newFleetServer() *mcp.Server {
	s := mcp.NewServer(g.implementation(), &mcp.ServerOptions{Instructions: instructions,
		SubscribeHandler: g.subscribe, UnsubscribeHandler: g.unsubscribe, CompletionHandler: g.complete,
		SetCacheable: onlyForToken,
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{},
			//lint:ignore SA1019 clients before 2026-07-28 set their level of logging
			Logging:   &mcp.LoggingCapabilities{},
			Prompts:   &mcp.PromptCapabilities{ListChanged: g.o.Programs != nil},
			Resources: &mcp.ResourceCapabilities{Subscribe: true, ListChanged: g.o.Programs != nil}}})
	s.AddReceivingMiddleware(g.receive, g.listResources, g.noteLevels, g.programs.serve(address{}))
	s.AddSendingMiddleware(g.hideUpdates, g.programs.hide(address{}))
	g.addDeviceTools(s)
	g.addInventoryTools(s)
	g.addCallTools(s)
	g.addFanOutTools(s)
	g.addCampaignTools(s)
	g.addSnapshotTool(s)
	g.addResources(s)
	g.addPrompts(s)
	return s
}

// ofOneToken is the cache scope of all answers, because tokens see different devices and
// tools.
const ofOneToken = "private"

func onlyForToken(_ context.Context, _ mcp.Request, c *mcp.Cacheable) { c.CacheScope = ofOneToken }

type principalKey struct{}

// principal returns the principal that made the request of ctx.
func principal(ctx context.Context) fleet.Principal {
	p, _ := ctx.Value(principalKey{}).(*fleet.Principal)
	return *p
}

// receive puts the principal and its scope into the context of a request, and turns a
// panic into an error, because the SDK runs each request on another goroutine.
func (g *Gateway) receive(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (result mcp.Result, err error) {
		defer func() {
			if v := recover(); v != nil {
				g.log.Error("panic in an MCP request", "method", method, "err", v, "stack", string(debug.Stack()))
				result, err = nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error"}
			}
		}()
		c := callerOf(ctx)
		if session, ok := req.GetSession().(*mcp.ServerSession); ok {
			if method == "initialize" && c.slot != nil {
				c.slot.opened(session)
			}
			if method == "initialize" || method == "subscriptions/listen" {
				g.watches.add(session, c)
			}
		}
		by := c.by.Load()
		ctx = origin.With(context.WithValue(ctx, principalKey{}, by), originOf(c, req))
		return next(fleet.WithScope(ctx, *by), method, req)
	}
}

// originOf returns the origin of a request that the SDK passes on. A trace in _meta belongs to the message, one in
// the header to the HTTP request.
func originOf(c *caller, req mcp.Request) (o origin.Origin) {
	if from := c.from.Load(); from != nil {
		o = *from
	}
	if extra := req.GetExtra(); extra != nil && extra.Header != nil { // the caller's may be of another request
		o.Trace = origin.ParseTraceParent(extra.Header.Get("Traceparent"))
	}
	if session, ok := req.GetSession().(*mcp.ServerSession); ok && session != nil {
		if p := session.InitializeParams(); p != nil {
			o.Client = nameOfClient(o.Client, p.ClientInfo)
		}
	}
	if call, ok := req.GetParams().(*mcp.CallToolParamsRaw); ok && call != nil {
		if parent, ok := call.Meta[traceParent].(string); ok {
			o.Trace = origin.ParseTraceParent(parent)
		}
	}
	return o
}

// traceParent is the key of the trace context in _meta.
const traceParent = "traceparent"

// nameOfClient returns what an MCP client calls itself, or agent if it does not say.
func nameOfClient(agent string, info *mcp.Implementation) string {
	if info == nil || info.Name == "" {
		return agent
	}
	return origin.CleanClient(strings.TrimSpace(info.Name + " " + info.Version))
}

// An answer is the reply of a gateway tool.
type answer struct {
	text    string
	out     any           // structured content, of the tool's output schema
	more    []mcp.Content // after the text
	failed  bool          // it reports a failure that the model should see
	refusal *fleet.Error

	asks  mcp.InputRequestMap // instead of the above: questions for the client's user
	state string              // the client repeats its request with this
}

// An effect is what a tool does to devices. Hosts ask their users about it.
type effect int

const (
	reads  effect = iota // nothing
	writes               // adds something of fleetd's, such as a draft
	ends                 // ends something of fleetd's for good
	acts                 // runs a tool of a device, whose effect fleetd cannot determine
)

// A definition describes a tool of the gateway.
type definition struct {
	name, title, about string
	models             fleet.ForModels
	heavy              heavy.Work // what it costs
	effect             effect
	open               bool // it sends messages to devices
	limits             map[string]func(*jsonschema.Schema)
}

// add adds a tool to the server. It derives the tool's schemas from In and Out.
func add[In, Out any](g *Gateway, s *mcp.Server, d definition,
	do func(ctx context.Context, by fleet.Principal, req *mcp.CallToolRequest, in In) (answer, error)) {
	if !d.models.Valid() {
		panic("the tool " + d.name + " does not say whether a language model may") // at the start, in every test
	}
	if !d.heavy.Valid() {
		panic("the tool " + d.name + " declares work that is not known")
	}
	g.models[d.name] = d.models
	input := schemaOf[In]()
	for name, limit := range d.limits {
		limit(input.Properties[name])
	}
	resolved, err := input.Resolve(nil)
	if err != nil {
		panic(fmt.Sprintf("schema of %s: %v", d.name, err)) // at the start, in every test
	}
	s.AddTool(&mcp.Tool{Name: d.name, Title: d.title, Description: d.about, InputSchema: raw(portable(input)),
		OutputSchema: raw(outline(schemaOf[Out]())), Annotations: d.annotations()},
		func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			in, wrong := decode[In](d.name, resolved, req.Params.Arguments)
			if wrong != nil {
				return g.failure(wrong), nil
			}
			by := principal(ctx)
			if err := d.models.Admit(by, d.name); err != nil {
				return g.failed(d.name, err), nil
			}
			done, err := g.o.Heavy.Begin(ctx, by, d.heavy)
			if err != nil {
				return g.failed(d.name, err), nil
			}
			defer done()
			a, err := do(ctx, by, req, in)
			if err != nil {
				return g.failed(d.name, err), nil
			}
			return a.result()
		})
}

// annotations omit what the protocol implies for every read-only tool, and the protocol's
// defaults: that a tool is destructive, and that it reaches beyond its server.
func (d definition) annotations() *mcp.ToolAnnotations {
	a := &mcp.ToolAnnotations{ReadOnlyHint: d.effect == reads, IdempotentHint: d.effect == reads || d.effect == ends}
	if d.effect == writes {
		a.DestructiveHint = new(false)
	}
	if !d.open {
		a.OpenWorldHint = new(false)
	}
	return a
}

func raw(v any) json.RawMessage {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // the schema is constant
	}
	return data
}

// decode reads the arguments of a tool. If they do not fit the schema, the error explains
// why.
func decode[In any](tool string, schema *jsonschema.Resolved, arguments json.RawMessage) (in In,
	wrong *fleet.CallError) {
	if string(arguments) == "null" {
		arguments = nil // some clients send null for an argument that they leave out
	}
	if len(arguments) > 0 {
		d := json.NewDecoder(bytes.NewReader(arguments))
		d.DisallowUnknownFields()
		if err := d.Decode(&in); err != nil {
			if wrong = call.CheckArguments(tool, schema, arguments); wrong == nil {
				wrong = fleet.NewCallError("invalid_arguments.schema", "detail", err.Error())
			}
			return in, wrong
		}
	}
	if quick, ok := any(&in).(interface{ complete() bool }); ok && quick.complete() {
		return in, nil
	}
	return in, call.CheckArguments(tool, schema, arguments)
}

func (a answer) result() (*mcp.CallToolResult, error) {
	if a.asks != nil {
		return &mcp.CallToolResult{InputRequests: a.asks, RequestState: a.state}, nil
	}
	r := &mcp.CallToolResult{Content: append([]mcp.Content{&mcp.TextContent{Text: a.text}}, a.more...), IsError: a.failed}
	if a.out != nil {
		data, err := json.Marshal(a.out)
		if err != nil {
			return nil, err
		}
		r.StructuredContent = json.RawMessage(data)
	}
	if a.refusal != nil {
		r.Meta = errorMeta(a.refusal.Code, a.refusal.Field, a.refusal.Params)
	}
	return r, nil
}

// errorMeta returns the code of a failure, for programs.
func errorMeta(code, field string, params fleet.Params) mcp.Meta {
	e := map[string]any{"code": code}
	if field != "" {
		e["field"] = field
	}
	if len(params) > 0 {
		e["params"] = params
	}
	return mcp.Meta{"fleetd/error": e}
}

// failed returns the result of a tool that ended with an error.
func (g *Gateway) failed(tool string, err error) *mcp.CallToolResult {
	e := outcome.Of(err).Refusal
	if e == nil {
		g.log.Error("MCP tool failed", "tool", tool, "err", err)
		e = fleet.Refuse(fleet.ErrUnavailable, "unavailable")
	} else if errors.Is(err, fleet.ErrUnavailable) {
		g.log.Warn("MCP tool failed", "tool", tool, "err", err)
	}
	text := g.o.Texts.Error(e)
	if e.Field != "" && !strings.HasPrefix(text, e.Field) {
		text = e.Field + ": " + text
	}
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: e.Code + ": " + text}}, IsError: true,
		Meta: errorMeta(e.Code, e.Field, e.Params)}
}

// failure returns the result of a tool whose arguments do not fit.
func (g *Gateway) failure(e *fleet.CallError) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: e.Code + ": " + g.o.Texts.CallError(e)}},
		IsError: true, Meta: errorMeta(e.Code, "", e.Params)}
}
