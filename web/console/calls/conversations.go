package calls

import (
	"context"
	"net/http"
	"time"

	"github.com/a-h/templ"
	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/forms"
	"fleetd/web/ui"
)

// maxConversationCalls is the maximum number of calls on the page of a conversation.
const maxConversationCalls = 100

func conversationFilter(l ui.ListURL, zone *time.Location) (f fleet.ConversationFilter, err error) {
	f = fleet.ConversationFilter{Upstream: l.Get("upstream"), Limit: pages.LimitOf(l), Cursor: l.Get("cursor")}
	if text := l.Get("device"); text != "" {
		if f.Device, err = fleet.ParseDeviceID(text); err != nil {
			return f, err
		}
	}
	if f.Ends, err = fleet.ParseConversationEnds(l.Get("end")); err != nil {
		return f, err
	}
	if f.Since, err = forms.Moment(l.Get("since"), zone); err != nil {
		return f, err
	}
	f.Until, err = forms.Moment(l.Get("until"), zone)
	return f, err
}

func conversationList(r *http.Request) ui.ListURL {
	return pages.ListURL(r, ui.PathConversations, "device", "upstream", "end", "since", "until")
}

func (s *Server) conversationRoutes() []pages.Route {
	return []pages.Route{
		{Method: http.MethodGet, Pattern: ui.PathConversations, Role: fleet.RoleViewer, Reach: access.List,
			Page: s.listConversations},
		{Method: http.MethodGet, Pattern: ui.PathConversations + "/{conversation}", Role: fleet.RoleViewer,
			Reach: access.Record, Page: s.showConversation},
	}
}

func (s *Server) listConversations(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	page := ui.ConversationsPage{List: conversationList(r)}
	f, err := conversationFilter(page.List, pages.ViewerOf(ctx).Zone)
	if err != nil {
		page.Bad = pages.Explain(ctx, err)
		return pages.Show(page.Page())
	}
	found, err := s.Conversations.Conversations(ctx, f)
	if pages.ErrorCode(err) == "invalid_cursor" {
		return pages.GoTo(page.List.At(""))
	}
	if err != nil {
		return pages.Answer{}, err
	}
	page.Prev, page.Next = found.Prev, found.Next
	if page.Rows, err = s.conversationRows(ctx, found.Items); err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

func (s *Server) conversationRows(ctx context.Context, list []fleet.Conversation) ([]ui.ConversationRow, error) {
	ids := make([]fleet.DeviceID, len(list))
	for i, c := range list {
		ids[i] = c.Device
	}
	names, err := s.DeviceNames(ctx, ids)
	rows := make([]ui.ConversationRow, len(list))
	for i, c := range list {
		rows[i] = ui.ConversationRow{Conversation: c, DeviceName: names[c.Device]}
	}
	return rows, err
}

func (s *Server) showConversation(r *http.Request) (pages.Answer, error) {
	id, err := uuid.Parse(chi.URLParam(r, "conversation"))
	if err != nil {
		return pages.Answer{}, pages.ErrNoPage
	}
	v, err := s.conversationView(r.Context(), id)
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(ui.ConversationPage{View: v}.Page())
}

func (s *Server) conversationView(ctx context.Context, id uuid.UUID) (v ui.ConversationView, err error) {
	c, err := s.Conversations.Conversation(ctx, id)
	if err != nil {
		return v, err
	}
	rows, err := s.conversationRows(ctx, []fleet.Conversation{c})
	if err != nil {
		return v, err
	}
	v.ConversationRow = rows[0]
	calls, err := s.Calls.List(ctx, call.Filter{Conversation: id, Limit: maxConversationCalls})
	if err != nil {
		return v, err
	}
	v.More = calls.Next != ""
	v.Calls, err = s.callRows(ctx, calls.Items)
	return v, err
}

// interruptCall sends a call that waits for the end of a conversation.
func (s *Server) interruptCall(r *http.Request) (pages.Answer, error) {
	id, err := uuid.Parse(chi.URLParam(r, "call"))
	if err != nil {
		return pages.Answer{}, pages.ErrNoPage
	}
	ctx := r.Context()
	_, err = s.Calls.Interrupt(ctx, pages.ViewerOf(ctx).Actor(), id)
	switch {
	case pages.ErrorCode(err) == "call_not_waiting": // it was sent while the button was pressed
		s.Flash(ctx, ui.Flash{Bad: true, Text: pages.Explain(ctx, err)})
	case err != nil:
		return pages.Answer{}, err
	}
	return pages.GoTo(ui.CallPath(id.String()))
}

// cancelCall cancels a call that waits for its device, or for the end of a conversation.
func (s *Server) cancelCall(r *http.Request) (pages.Answer, error) {
	id, err := uuid.Parse(chi.URLParam(r, "call"))
	if err != nil {
		return pages.Answer{}, pages.ErrNoPage
	}
	ctx := r.Context()
	_, err = s.Calls.Cancel(ctx, pages.ViewerOf(ctx).Actor(), id)
	switch {
	case pages.ErrorCode(err) == "call_not_waiting": // it was sent while the button was pressed
		s.Flash(ctx, ui.Flash{Bad: true, Text: pages.Explain(ctx, err)})
	case err != nil:
		return pages.Answer{}, err
	default:
		s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flash.call_canceled")})
	}
	return pages.GoTo(ui.CallPath(id.String()))
}

// A conversationsView follows the list of conversations: its rows, and the number of newer
// conversations.
type conversationsView struct {
	server *Server
	filter fleet.ConversationFilter
	began  time.Time
	seen   map[string]bool
}

func (v *conversationsView) Pace() time.Duration { return pages.PaceRows }

func (v *conversationsView) Wants(e *fleet.Event) bool {
	return e.Kind == fleet.EventConversation && (v.filter.Device == "" || v.filter.Device == e.Device)
}

func (v *conversationsView) Begin(ctx context.Context) (u pages.Updates, err error) {
	found, err := v.server.Conversations.Conversations(ctx, v.filter)
	if err != nil {
		return u, err
	}
	rows, err := v.server.conversationRows(ctx, found.Items)
	for _, row := range rows {
		u.Patches = append(u.Patches, row.Row())
	}
	return u, err
}

func (v *conversationsView) Render(ctx context.Context, events []fleet.Event) (u pages.Updates, err error) {
	f := v.filter
	f.Cursor, f.Limit = "", pages.MaxRows
	found, err := v.server.Conversations.Conversations(ctx, f)
	if err != nil {
		return u, err
	}
	changed := make(map[string]bool, len(events))
	for _, e := range events {
		changed[e.Subject] = true
	}
	var list []fleet.Conversation
	for _, c := range found.Items {
		id := c.ID.String()
		if !changed[id] {
			continue
		}
		list = append(list, c)
		if !v.seen[id] && c.Begin.After(v.began) {
			v.seen[id] = true
			u.Fresh++
		}
	}
	rows, err := v.server.conversationRows(ctx, list)
	for _, row := range rows {
		u.Patches = append(u.Patches, row.Row())
	}
	return u, err
}

// A conversationPageView follows the page of one conversation.
type conversationPageView struct {
	server *Server
	id     uuid.UUID
}

func (v conversationPageView) Pace() time.Duration { return pages.PaceRows }

func (v conversationPageView) Wants(e *fleet.Event) bool {
	return e.Kind == fleet.EventConversation && e.Subject == v.id.String() ||
		e.Kind == fleet.EventCall && e.Call.Actor.ID == v.id.String()
}

func (v conversationPageView) Begin(ctx context.Context) (pages.Updates, error) {
	return v.Render(ctx, nil)
}

func (v conversationPageView) Render(ctx context.Context, _ []fleet.Event) (pages.Updates, error) {
	page, err := v.server.conversationView(ctx, v.id)
	return pages.Updates{Patches: []templ.Component{page.View()}}, err
}

func (s *Server) newConversationsView(r *http.Request) (pages.View, error) {
	f, err := conversationFilter(conversationList(r), pages.ViewerOf(r.Context()).Zone)
	return &conversationsView{server: s, filter: f, began: s.Now(), seen: make(map[string]bool)}, err
}

func (s *Server) newConversationView(r *http.Request) (pages.View, error) {
	id, err := pages.SubjectID(r)
	return conversationPageView{s, id}, err
}
