package gateway

//lint:file-ignore SA1019 log messages are deprecated since 2026-07-28, and what servers have

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
)

// Programs are the plug-ins and endpoints: MCP servers that have prompts and resources besides
// their tools.
type Programs interface {
	// Server returns the session with a program, nil while it is not connected.
	Server(id fleet.DeviceID) *mcp.ClientSession
	// Audience returns who the program is for.
	Audience(id fleet.DeviceID) fleet.Audience
	// OnChange passes changes to receive, which does not block.
	OnChange(receive func(ProgramChange))
}

// A ProgramChange is what a program announced.
type ProgramChange struct {
	Device  fleet.DeviceID
	Lists   bool   // its prompts or resources may be others; it may also have come or gone
	Updated string // URI of a resource with new contents
	Log     *ProgramLog
}

// A ProgramLog is a log message of a program.
type ProgramLog struct {
	Level  mcp.LoggingLevel
	Logger string
	Data   json.RawMessage
}

// Limits of requests for prompts and resources.
const (
	programTimeout = 30 * time.Second
	maxContents    = 1 << 20 // bytes of a prompt's messages, or of a resource
	maxRequests    = 16      // to one program at a time
	maxURI         = 2 << 10
)

// programs passes prompts, resources, log messages and subscriptions on to clients.
type programs struct {
	g *Gateway
	Programs

	mu       sync.Mutex
	lists    map[listKey]*listing
	slots    map[fleet.DeviceID]chan struct{}
	wanted   map[fleet.DeviceID]*subscriptions
	pending  map[fleet.DeviceID]*pendingChange
	recent   map[fleet.DeviceID]announced
	wake     chan struct{}
	updating atomic.Pointer[fleet.Device] // the program whose resource is being announced
}

func newPrograms(g *Gateway, p Programs) *programs {
	ps := &programs{g: g, Programs: p, lists: map[listKey]*listing{}, slots: map[fleet.DeviceID]chan struct{}{},
		wanted: map[fleet.DeviceID]*subscriptions{}, pending: map[fleet.DeviceID]*pendingChange{},
		recent: map[fleet.DeviceID]announced{}, wake: make(chan struct{}, 1)}
	return ps
}

// An address is what a server of the gateway shows of the programs: all of them under names that
// begin with the program's, or a single one under its own names.
type address struct{ only fleet.DeviceID }

// labelOf returns the beginning of names: the name of a plug-in, or the id of an endpoint. Names
// of plug-ins have no dot.
func labelOf(id fleet.DeviceID) string { return strings.TrimPrefix(string(id), fleet.PluginPrefix) }

// schemes are those of resources at /mcp, by the prefix of ids.
var schemes = map[string]string{fleet.PluginPrefix: "plugin://", fleet.EndpointPrefix: "endpoint://"}

func (a address) name(id fleet.DeviceID, name string) string {
	if a.only != "" {
		return name
	}
	return labelOf(id) + "/" + name
}

func (a address) uri(id fleet.DeviceID, uri string) string {
	if a.only != "" {
		return uri
	}
	for prefix, scheme := range schemes {
		if name, ok := strings.CutPrefix(string(id), prefix); ok {
			return scheme + name + "/" + uri
		}
	}
	return uri
}

// ofName returns the program of a prompt, and the prompt's name there.
func (a address) ofName(name string) (fleet.DeviceID, string, bool) {
	if a.only != "" {
		return a.only, name, true
	}
	label, name, ok := strings.Cut(name, "/")
	if !strings.HasPrefix(label, fleet.EndpointPrefix) {
		label = fleet.PluginPrefix + label
	}
	id, err := fleet.ParseDeviceID(label)
	return id, name, ok && err == nil && name != ""
}

// ofURI returns the program of a resource, and the resource's URI there.
func (a address) ofURI(uri string) (fleet.DeviceID, string, bool) {
	if a.only != "" {
		return a.only, uri, true
	}
	for prefix, scheme := range schemes {
		if rest, ok := strings.CutPrefix(uri, scheme); ok {
			name, inner, _ := strings.Cut(rest, "/")
			id, err := fleet.ParseDeviceID(prefix + name)
			return id, inner, err == nil && inner != ""
		}
	}
	return "", "", false
}

// shows reports whether the prompts, resources and log messages of a program exist for a
// principal: as the resources of boards, for each that sees the device. What is for people only
// does not exist for a language model.
func (p *programs) shows(by fleet.Principal, d fleet.Device) bool {
	return by.Sees(d) && !(by.Kind.IsModel() && p.Audience(d.ID) == fleet.AudienceUser)
}

// find returns a program that the caller may see.
func (p *programs) find(ctx context.Context, id fleet.DeviceID) (fleet.Device, error) {
	d, err := p.g.find(ctx, principal(ctx), string(id))
	if err == nil && !p.shows(principal(ctx), d) {
		err = unknownDevice(string(id))
	}
	return d, err
}

// begin returns the session for a request to a program. The caller must call done.
func (p *programs) begin(ctx context.Context, id fleet.DeviceID) (_ context.Context, server *mcp.ClientSession,
	done func(), err error) {
	if server = p.Server(id); server == nil {
		return nil, nil, nil, p.refuse(jsonrpc.CodeInternalError, fleet.Refuse(fleet.ErrUnavailable, "mcp_program_offline",
			"device", string(id)))
	}
	p.mu.Lock()
	slots := p.slots[id]
	if slots == nil {
		slots = make(chan struct{}, maxRequests)
		p.slots[id] = slots
	}
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	select {
	case slots <- struct{}{}:
		return ctx, server, func() { <-slots; cancel() }, nil
	case <-ctx.Done():
		cancel()
		return nil, nil, nil, p.failure(ctx, id, ctx.Err())
	}
}

// refuse returns an error of the protocol.
func (p *programs) refuse(code int64, e *fleet.Error) error {
	return &jsonrpc.Error{Code: code, Message: e.Code + ": " + p.g.o.Texts.Error(e)}
}

// failure returns the error of a request that a program did not answer, or refused.
func (p *programs) failure(ctx context.Context, id fleet.DeviceID, err error) error {
	if rpc, refused := errors.AsType[*jsonrpc.Error](err); refused {
		code := int64(jsonrpc.CodeInternalError)
		if rpc.Code == jsonrpc.CodeInvalidParams || rpc.Code == jsonrpc.CodeMethodNotFound {
			code = rpc.Code
		}
		return p.refuse(code, fleet.Refuse(fleet.ErrInvalid, "mcp_program_refused", "device", string(id), "detail",
			fleet.CleanText(rpc.Message, 500)))
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return p.refuse(jsonrpc.CodeInternalError, fleet.Refuse(fleet.ErrUnavailable, "mcp_program_silent", "device",
			string(id), "timeout_ms", programTimeout))
	}
	return p.refuse(jsonrpc.CodeInternalError, fleet.Refuse(fleet.ErrUnavailable, "mcp_program_offline", "device",
		string(id)))
}

func (p *programs) tooLong(id fleet.DeviceID, size int) error {
	return p.refuse(jsonrpc.CodeInternalError, fleet.Refuse(fleet.ErrInvalid, "mcp_program_long", "device", string(id),
		"kib", size>>10, "limit", maxContents>>10))
}

func (p *programs) asksInput(id fleet.DeviceID) error {
	return p.refuse(jsonrpc.CodeInternalError, fleet.Refuse(fleet.ErrInvalid, "mcp_program_asks", "device", string(id)))
}

// serve answers the requests about prompts and resources of programs.
func (p *programs) serve(a address) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			switch params := req.GetParams().(type) {
			case *mcp.ListPromptsParams:
				return p.listPrompts(ctx, a, req, params, next)
			case *mcp.ListResourceTemplatesParams:
				return p.listTemplates(ctx, a, req, params, next)
			case *mcp.ListResourcesParams:
				if a.only != "" { // at /mcp, listResources has those of boards, too
					out := &mcp.ListResourcesResult{Cacheable: mcp.Cacheable{CacheScope: ofOneToken}}
					var err error
					out.Resources, out.NextCursor, err = p.resources(ctx, a, cursorOf(params))
					return out, err
				}
			case *mcp.GetPromptParams:
				if id, name, ok := a.ofName(params.Name); ok {
					return p.getPrompt(ctx, a, id, name, params)
				}
			case *mcp.ReadResourceParams:
				if id, uri, ok := a.ofURI(params.URI); ok {
					return p.read(ctx, a, id, uri, params.URI)
				}
			}
			return next(ctx, method, req)
		}
	}
}

func (p *programs) getPrompt(ctx context.Context, a address, id fleet.DeviceID, name string,
	params *mcp.GetPromptParams) (mcp.Result, error) {
	unknown := &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "unknown prompt " + fleet.CleanText(params.Name, 200)}
	if _, err := p.find(ctx, id); errors.Is(err, fleet.ErrNotFound) || errors.Is(err, fleet.ErrInvalid) {
		return nil, unknown
	} else if err != nil {
		return nil, p.g.protocolError(err)
	}
	sending, server, done, err := p.begin(ctx, id)
	if err != nil {
		return nil, err
	}
	defer done()
	r, err := server.GetPrompt(sending, &mcp.GetPromptParams{Name: name, Arguments: params.Arguments})
	switch {
	case err != nil:
		return nil, p.failure(sending, id, err)
	case r.NeedsInput():
		return nil, p.asksInput(id)
	}
	size := 0
	for _, m := range r.Messages {
		if m == nil {
			continue
		}
		switch c := m.Content.(type) {
		case *mcp.TextContent:
			size += len(c.Text)
		case *mcp.ImageContent:
			size += len(c.Data)
		case *mcp.AudioContent:
			size += len(c.Data)
		case *mcp.ResourceLink:
			size += len(c.URI) + len(c.Description)
			c.URI = a.uri(id, c.URI)
		case *mcp.EmbeddedResource:
			if c.Resource != nil {
				size += len(c.Resource.Text) + len(c.Resource.Blob)
				c.Resource.URI = a.uri(id, c.Resource.URI)
			}
		}
	}
	if size > maxContents {
		return nil, p.tooLong(id, size)
	}
	return &mcp.GetPromptResult{Description: cleanLines(r.Description, maxAbout), Messages: r.Messages}, nil
}

// read reads a resource, which the client names shown.
func (p *programs) read(ctx context.Context, a address, id fleet.DeviceID, uri, shown string) (mcp.Result, error) {
	if _, err := p.find(ctx, id); absent(err, uri) {
		return nil, mcp.ResourceNotFoundError(fleet.CleanText(shown, maxURI))
	} else if err != nil {
		return nil, p.g.protocolError(err)
	}
	sending, server, done, err := p.begin(ctx, id)
	if err != nil {
		return nil, err
	}
	defer done()
	r, err := server.ReadResource(sending, &mcp.ReadResourceParams{URI: uri})
	if rpc, refused := errors.AsType[*jsonrpc.Error](err); refused && rpc.Code == oldNotFound {
		return nil, mcp.ResourceNotFoundError(shown)
	}
	switch {
	case err != nil:
		return nil, p.failure(sending, id, err)
	case r.NeedsInput():
		return nil, p.asksInput(id)
	}
	size := 0
	out := &mcp.ReadResourceResult{Cacheable: mcp.Cacheable{CacheScope: ofOneToken}, Contents: []*mcp.ResourceContents{}}
	for _, c := range r.Contents {
		if c == nil {
			continue
		}
		size += len(c.URI) + len(c.Text) + len(c.Blob)
		of := shown
		if c.URI != "" && c.URI != uri {
			of = a.uri(id, c.URI)
		}
		out.Contents = append(out.Contents, &mcp.ResourceContents{URI: of, MIMEType: fleet.CleanText(c.MIMEType, maxShort),
			Text: c.Text, Blob: c.Blob})
	}
	if size > maxContents {
		return nil, p.tooLong(id, size)
	}
	return out, nil
}

// absent reports whether a resource does not exist for the caller.
func absent(err error, uri string) bool {
	return errors.Is(err, fleet.ErrNotFound) || errors.Is(err, fleet.ErrInvalid) || len(uri) > maxURI
}

// oldNotFound is the code for an unknown resource before 2026-07-28.
const oldNotFound = -32002

// complete completes an argument of a prompt, or a variable of a template.
func (p *programs) complete(ctx context.Context, id fleet.DeviceID, ref mcp.CompleteReference,
	params *mcp.CompleteParams) (*mcp.CompleteResult, error) {
	if _, err := p.find(ctx, id); err != nil {
		return nil, p.g.protocolError(err)
	}
	sending, server, done, err := p.begin(ctx, id)
	if err != nil {
		return nil, err
	}
	defer done()
	empty := &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{}}}
	if i := server.InitializeResult(); i == nil || i.Capabilities == nil || i.Capabilities.Completions == nil {
		return empty, nil
	}
	r, err := server.Complete(sending, &mcp.CompleteParams{Ref: &ref, Argument: params.Argument, Context: params.Context})
	if err != nil {
		return nil, p.failure(sending, id, err)
	}
	for _, v := range r.Completion.Values[:min(len(r.Completion.Values), maxCompletions)] {
		empty.Completion.Values = append(empty.Completion.Values, fleet.CleanText(v, 300))
	}
	empty.Completion.Total = r.Completion.Total
	empty.Completion.HasMore = r.Completion.HasMore || len(r.Completion.Values) > maxCompletions
	return empty, nil
}

// completes returns the program that completes an argument, and the reference there.
func (a address) completes(params *mcp.CompleteParams) (id fleet.DeviceID, ref mcp.CompleteReference, ok bool) {
	ref = *params.Ref
	switch ref.Type {
	case "ref/prompt":
		id, ref.Name, ok = a.ofName(ref.Name)
	case "ref/resource":
		id, ref.URI, ok = a.ofURI(ref.URI)
	}
	return id, ref, ok
}

// noPrograms is [Programs] without any.
type noPrograms struct{}

func (noPrograms) Server(fleet.DeviceID) *mcp.ClientSession { return nil }
func (noPrograms) Audience(fleet.DeviceID) fleet.Audience   { return fleet.AudienceModel }
func (noPrograms) OnChange(receive func(ProgramChange))     {}
