package mcp

import (
	"context"
	"fmt"
	"slices"
)

// ListToolsParams selects tools.
type ListToolsParams struct {
	// WithUserTools also lists the tools meant for people only.
	WithUserTools bool
}

// ListTools returns the device's tools from all pages, in the device's order.
// Tools with the same name count once. Tools that cannot be called (see [Tool])
// are left out and logged.
//
// On an error ListTools also returns the tools of earlier pages: if one tool is
// too large for a page, a stock device cannot list the tools after it. A list
// that exceeds a limit ends with [ErrTooLarge], one that repeats a cursor with
// [ErrMalformed]. Each page has ListTimeout; bound the whole with ctx.
func (s *Session) ListTools(ctx context.Context, p ListToolsParams) ([]Tool, error) {
	l := listing{session: s, params: p}
	for cursor := ""; ; {
		next, err := l.page(ctx, cursor)
		if err != nil {
			return l.tools, fmt.Errorf("tools/list, page %d: %w", len(l.cursors)+1, err)
		}
		if next == "" {
			return l.tools, nil
		}
		cursor = next
	}
}

// A listing is one run of ListTools.
type listing struct {
	session *Session
	params  ListToolsParams
	cursors []string // requested so far, except the first page's
	names   map[string]bool
	tools   []Tool
	bytes   int
}

// page requests the page at cursor and returns the cursor of the next.
func (l *listing) page(ctx context.Context, cursor string) (next string, err error) {
	p, err := l.fetch(ctx, cursor)
	if err != nil {
		return "", err
	}
	if err := l.keep(p.tools); err != nil {
		return "", err
	}
	if p.next == "" {
		return "", nil
	}
	return p.next, l.follow(p.next)
}

func (l *listing) fetch(ctx context.Context, cursor string) (page, error) {
	s := l.session
	id := s.NextID()
	a, err := s.exchange(ctx, request{
		id: id, method: methodToolsList, raw: true, timeout: s.o.ListTimeout,
		msg: appendList(nil, id, cursor, l.params.WithUserTools),
	})
	if err != nil {
		return page{}, err
	}
	if l.bytes += len(a.raw); l.bytes > s.o.MaxListBytes {
		return page{}, fmt.Errorf("more than %d bytes: %w", s.o.MaxListBytes, ErrTooLarge)
	}
	return parsePage(a.raw, s.o.Logger)
}

func (l *listing) keep(tools []Tool) error {
	if l.names == nil {
		l.names = make(map[string]bool, len(tools))
	}
	for _, t := range tools {
		if l.names[t.Name] {
			continue
		}
		if len(l.tools) == l.session.o.MaxTools {
			return fmt.Errorf("more than %d tools: %w", len(l.tools), ErrTooLarge)
		}
		l.names[t.Name] = true
		l.tools = append(l.tools, t)
	}
	return nil
}

// follow returns an error if the listing must not go on to the page at cursor.
func (l *listing) follow(cursor string) error {
	if slices.Contains(l.cursors, cursor) {
		return fmt.Errorf("%w: cursor %q again", ErrMalformed, cursor)
	}
	if len(l.cursors)+1 == l.session.o.MaxPages {
		return fmt.Errorf("more than %d pages: %w", l.session.o.MaxPages, ErrTooLarge)
	}
	l.cursors = append(l.cursors, cursor)
	return nil
}
