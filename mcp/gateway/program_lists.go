package gateway

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
)

// Limits of the lists of one program. Prompts and resources that are not listed can be read by
// their name.
const (
	maxListed      = 200 // prompts, resources, or templates
	maxListedBytes = 256 << 10
	maxListPages   = 50
	maxArguments   = 32 // of a prompt
	maxAbout       = 1 << 10
	// listWait is how long a client waits for the list of a program. Later, a list is left out,
	// and sessions are notified when it has come.
	listWait = 2 * time.Second
	// listRetry is how long a list that could not be read is left out.
	listRetry = time.Minute
	pageSize  = 200
)

type listKind int

const (
	listPrompts listKind = iota
	listResources
	listTemplates
)

type listKey struct {
	id   fleet.DeviceID
	kind listKind
}

// A listing is a list of a program, which is read once.
type listing struct {
	server *mcp.ClientSession
	began  time.Time
	cancel context.CancelFunc
	done   chan struct{}

	// after done
	ended     time.Time
	err       error
	prompts   []*mcp.Prompt
	resources []*mcp.Resource
	templates []*mcp.ResourceTemplate
}

// visible returns the connected programs of an address that the caller may see, by id.
func (p *programs) visible(ctx context.Context, a address) ([]fleet.DeviceID, error) {
	if a.only != "" {
		if _, err := p.find(ctx, a.only); errors.Is(err, fleet.ErrNotFound) {
			return nil, nil
		} else if err != nil {
			return nil, p.g.protocolError(err)
		}
		return []fleet.DeviceID{a.only}, nil
	}
	var ids []fleet.DeviceID
	by := principal(ctx)
	f := fleet.DeviceFilter{Query: ofPrograms, Limit: resourcesPage}
	for {
		page, err := p.g.o.Devices.Devices(ctx, f)
		if err != nil {
			return nil, p.g.protocolError(err)
		}
		for _, d := range page.Items {
			if p.shows(by, d) {
				ids = append(ids, d.ID)
			}
		}
		if f.Cursor = page.Next; f.Cursor == "" || len(ids) >= maxResources {
			break
		}
	}
	slices.Sort(ids)
	return ids, nil
}

var ofPrograms = fleet.Query{Text: "kind:plugin,endpoint", Terms: []fleet.Term{{Field: "kind", Op: ":",
	Values: []string{string(fleet.DevicePlugin), string(fleet.DeviceEndpoint)}}}}

// list returns a list of a program, nil if it is not connected, or does not answer in time.
func (p *programs) list(ctx context.Context, key listKey) *listing {
	server := p.Server(key.id)
	if server == nil {
		return nil
	}
	p.mu.Lock()
	l := p.lists[key]
	if l == nil || l.server != server || l.failedLongAgo() {
		if l != nil {
			l.cancel()
		}
		var sending context.Context
		l = &listing{server: server, began: time.Now(), done: make(chan struct{})}
		sending, l.cancel = context.WithTimeout(p.g.life, programTimeout)
		p.lists[key] = l
		go p.load(sending, key, l)
	}
	p.mu.Unlock()
	select {
	case <-l.done:
		return l
	default:
	}
	wait := time.NewTimer(time.Until(l.began.Add(listWait)))
	defer wait.Stop()
	select {
	case <-l.done:
		return l
	case <-wait.C:
	case <-ctx.Done():
	}
	return nil
}

func (l *listing) failedLongAgo() bool {
	select {
	case <-l.done:
		return l.err != nil && time.Since(l.ended) > listRetry
	default:
		return false
	}
}

// forget drops the lists of a program: they are read again when a client asks for them.
func (p *programs) forget(id fleet.DeviceID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, kind := range []listKind{listPrompts, listResources, listTemplates} {
		if l := p.lists[listKey{id, kind}]; l != nil {
			l.cancel()
			delete(p.lists, listKey{id, kind})
		}
	}
}

func (p *programs) load(ctx context.Context, key listKey, l *listing) {
	defer l.cancel()
	caps := &mcp.ServerCapabilities{}
	if i := l.server.InitializeResult(); i != nil && i.Capabilities != nil {
		caps = i.Capabilities
	}
	switch {
	case key.kind == listPrompts && caps.Prompts != nil:
		l.prompts, l.err = collect(func(cursor string) ([]*mcp.Prompt, string, error) {
			r, err := l.server.ListPrompts(ctx, &mcp.ListPromptsParams{Cursor: cursor})
			if err != nil {
				return nil, "", err
			}
			return r.Prompts, r.NextCursor, nil
		}, cleanPrompt, func(v *mcp.Prompt) string { return v.Name })
	case key.kind == listResources && caps.Resources != nil:
		l.resources, l.err = collect(func(cursor string) ([]*mcp.Resource, string, error) {
			r, err := l.server.ListResources(ctx, &mcp.ListResourcesParams{Cursor: cursor})
			if err != nil {
				return nil, "", err
			}
			return r.Resources, r.NextCursor, nil
		}, cleanResource, func(v *mcp.Resource) string { return v.URI })
	case key.kind == listTemplates && caps.Resources != nil:
		l.templates, l.err = collect(func(cursor string) ([]*mcp.ResourceTemplate, string, error) {
			r, err := l.server.ListResourceTemplates(ctx, &mcp.ListResourceTemplatesParams{Cursor: cursor})
			if err != nil {
				return nil, "", err
			}
			return r.ResourceTemplates, r.NextCursor, nil
		}, cleanTemplate, func(v *mcp.ResourceTemplate) string { return v.URITemplate })
	}
	if rpc, refused := errors.AsType[*jsonrpc.Error](l.err); refused && rpc.Code == jsonrpc.CodeMethodNotFound {
		l.err = nil // it has none
	}
	l.ended = time.Now()
	if l.err != nil && p.g.life.Err() == nil {
		p.g.log.Warn("prompts or resources not listed", "device", key.id, "err", fleet.CleanText(l.err.Error(), 200))
	}
	close(l.done)
	if l.err == nil && l.ended.Sub(l.began) > listWait {
		p.announceLists(key.id)
	}
}

// collect reads a list page by page, until it ends or has reached its limit. It returns it by key,
// without what clean refuses. If a later page fails, the list ends with the earlier ones.
func collect[T any](page func(cursor string) ([]*T, string, error), clean func(*T) *T,
	key func(*T) string) ([]*T, error) {
	var list []*T
	cursor, size, seen := "", 0, map[string]bool{}
	for range maxListPages {
		items, next, err := page(cursor)
		if err != nil && len(list) == 0 {
			return nil, err
		}
		for _, item := range items {
			if item == nil {
				continue
			}
			v := clean(item)
			if v == nil || seen[key(v)] {
				continue
			}
			data, _ := json.Marshal(v)
			if size += len(data); len(list) == maxListed || size > maxListedBytes {
				next = ""
				break
			}
			seen[key(v)] = true
			list = append(list, v)
		}
		if cursor = next; cursor == "" || err != nil {
			break
		}
	}
	slices.SortFunc(list, func(a, b *T) int { return strings.Compare(key(a), key(b)) })
	return list, nil
}

// usable reports whether a name can be shown, and sent back, as it is.
func usable(name string, limit int) bool {
	return name != "" && len(name) <= limit && fleet.CleanText(name, limit) == name
}

// What programs wrote is cut and cleaned. Icons are left out, because clients would load them
// from an address that the program chose.

func cleanPrompt(p *mcp.Prompt) *mcp.Prompt {
	if !usable(p.Name, maxName) || len(p.Arguments) > maxArguments {
		return nil
	}
	v := &mcp.Prompt{Name: p.Name, Title: fleet.CleanText(p.Title, maxName),
		Description: cleanLines(p.Description, maxAbout)}
	for _, a := range p.Arguments {
		if a == nil || !usable(a.Name, maxName) {
			return nil
		}
		v.Arguments = append(v.Arguments, &mcp.PromptArgument{Name: a.Name, Title: fleet.CleanText(a.Title, maxName),
			Description: cleanLines(a.Description, maxSummary), Required: a.Required})
	}
	return v
}

func cleanResource(r *mcp.Resource) *mcp.Resource {
	if u, err := url.Parse(r.URI); err != nil || u.Scheme == "" || !usable(r.URI, maxURI) {
		return nil
	}
	return &mcp.Resource{URI: r.URI, Name: fleet.CleanText(r.Name, maxName), Title: fleet.CleanText(r.Title, maxName),
		Description: cleanLines(r.Description, maxAbout), MIMEType: fleet.CleanText(r.MIMEType, maxShort),
		Size: max(r.Size, 0)}
}

func cleanTemplate(r *mcp.ResourceTemplate) *mcp.ResourceTemplate {
	if !usable(r.URITemplate, maxURI) || !validTemplate(r.URITemplate) {
		return nil
	}
	return &mcp.ResourceTemplate{URITemplate: r.URITemplate, Name: fleet.CleanText(r.Name, maxName),
		Title: fleet.CleanText(r.Title, maxName), Description: cleanLines(r.Description, maxAbout),
		MIMEType: fleet.CleanText(r.MIMEType, maxShort)}
}

// validTemplate reports whether clients can parse a URI template: the SDK panics if they cannot.
func validTemplate(template string) (ok bool) {
	defer func() { ok = recover() == nil }()
	mcp.NewServer(&mcp.Implementation{Name: "fleetd", Version: "1"}, nil).AddResourceTemplate(
		&mcp.ResourceTemplate{Name: "t", URITemplate: template}, nil)
	return true
}

// A part is an item of a list of all programs.
type part[T any] struct {
	key  string // by which lists are sorted
	item *T
}

// all returns the items of all programs that the caller may see. Lists are read concurrently.
func all[T any](ctx context.Context, p *programs, a address, kind listKind,
	items func(id fleet.DeviceID, l *listing) []part[T]) ([]part[T], error) {
	ids, err := p.visible(ctx, a)
	if err != nil {
		return nil, err
	}
	parts := make([][]part[T], len(ids))
	var reading sync.WaitGroup
	for i, id := range ids {
		reading.Go(func() {
			if l := p.list(ctx, listKey{id, kind}); l != nil {
				parts[i] = items(id, l)
			}
		})
	}
	reading.Wait()
	return slices.Concat(parts...), nil
}

// pageOf returns the page that follows a cursor.
func pageOf[T any](parts []part[T], cursor string) (page []*T, next string, err error) {
	begin := 0
	if cursor != "" {
		after, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(cursor, programCursor))
		if err != nil || !strings.HasPrefix(cursor, programCursor) {
			return nil, "", &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "unknown cursor; begin without one"}
		}
		for begin < len(parts) && parts[begin].key <= string(after) {
			begin++
		}
	}
	page = []*T{}
	for i := begin; i < len(parts); i++ {
		if len(page) == pageSize {
			return page, programCursor + base64.RawURLEncoding.EncodeToString([]byte(parts[i-1].key)), nil
		}
		page = append(page, parts[i].item)
	}
	return page, "", nil
}

// programCursor begins cursors within the lists of programs.
const programCursor = "p."

func cursorOf(params any) string {
	switch p := params.(type) {
	case *mcp.ListPromptsParams:
		if p != nil {
			return p.Cursor
		}
	case *mcp.ListResourcesParams:
		if p != nil {
			return p.Cursor
		}
	case *mcp.ListResourceTemplatesParams:
		if p != nil {
			return p.Cursor
		}
	}
	return ""
}

func (p *programs) listPrompts(ctx context.Context, a address, req mcp.Request, params *mcp.ListPromptsParams,
	next mcp.MethodHandler) (mcp.Result, error) {
	out := &mcp.ListPromptsResult{Cacheable: mcp.Cacheable{CacheScope: ofOneToken}}
	cursor := cursorOf(params)
	parts, err := all(ctx, p, a, listPrompts, func(id fleet.DeviceID, l *listing) (list []part[mcp.Prompt]) {
		for _, v := range l.prompts {
			c := *v
			c.Name = a.name(id, v.Name)
			list = append(list, part[mcp.Prompt]{string(id) + "\x00" + v.Name, &c})
		}
		return list
	})
	if err != nil {
		return nil, err
	}
	if out.Prompts, out.NextCursor, err = pageOf(parts, cursor); err != nil || cursor != "" || a.only != "" {
		return out, err
	}
	own, err := next(ctx, "prompts/list", req)
	if list, ok := own.(*mcp.ListPromptsResult); err == nil && ok {
		out.Prompts = append(list.Prompts, out.Prompts...)
	}
	return out, err
}

func (p *programs) listTemplates(ctx context.Context, a address, req mcp.Request,
	params *mcp.ListResourceTemplatesParams, next mcp.MethodHandler) (mcp.Result, error) {
	out := &mcp.ListResourceTemplatesResult{Cacheable: mcp.Cacheable{CacheScope: ofOneToken}}
	cursor := cursorOf(params)
	parts, err := all(ctx, p, a, listTemplates, func(id fleet.DeviceID, l *listing) (list []part[mcp.ResourceTemplate]) {
		for _, v := range l.templates {
			c := *v
			c.Name, c.URITemplate = a.name(id, v.Name), a.uri(id, v.URITemplate)
			list = append(list, part[mcp.ResourceTemplate]{string(id) + "\x00" + v.URITemplate, &c})
		}
		return list
	})
	if err != nil {
		return nil, err
	}
	if out.ResourceTemplates, out.NextCursor, err = pageOf(parts, cursor); err != nil || cursor != "" || a.only != "" {
		return out, err
	}
	own, err := next(ctx, "resources/templates/list", req)
	if list, ok := own.(*mcp.ListResourceTemplatesResult); err == nil && ok {
		out.ResourceTemplates = append(list.ResourceTemplates, out.ResourceTemplates...)
	}
	return out, err
}

// resources returns a page of the resources of programs.
func (p *programs) resources(ctx context.Context, a address, cursor string) ([]*mcp.Resource, string, error) {
	parts, err := all(ctx, p, a, listResources, func(id fleet.DeviceID, l *listing) (list []part[mcp.Resource]) {
		for _, v := range l.resources {
			c := *v
			c.Name, c.URI = a.name(id, v.Name), a.uri(id, v.URI)
			list = append(list, part[mcp.Resource]{string(id) + "\x00" + v.URI, &c})
		}
		return list
	})
	if err != nil {
		return nil, "", err
	}
	return pageOf(parts, cursor)
}
