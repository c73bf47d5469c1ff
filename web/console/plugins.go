package console

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/plugin"
	"fleetd/web/access"
	"fleetd/web/forms"
	"fleetd/web/ui"
)

// pluginRoutes are the settings of plug-ins. Their changes decide which programs run on fleetd's
// machine, so they require the password.
func (s *Server) pluginRoutes() []route {
	const get, post, admin = http.MethodGet, http.MethodPost, fleet.RoleAdmin
	one := ui.PathPlugins + "/{plugin}"
	return []route{
		{method: get, pattern: ui.PathPlugins, role: admin, reach: access.Fleet, page: s.listPlugins},
		{method: post, pattern: ui.PathPlugins, role: admin, reach: access.Fleet, page: s.createPlugin, confirm: true},
		{method: get, pattern: one, role: admin, reach: access.Fleet, page: s.showPlugin},
		{method: post, pattern: one + "/reload", role: admin, reach: access.Fleet, page: s.reloadPlugin},
		{method: post, pattern: one + "/edit", role: admin, reach: access.Fleet, page: s.editPlugin, confirm: true},
		{method: post, pattern: one + "/enable", role: admin, reach: access.Fleet, page: s.switchPlugin(true),
			confirm: true},
		{method: post, pattern: one + "/disable", role: admin, reach: access.Fleet, page: s.switchPlugin(false),
			confirm: true},
		{method: post, pattern: one + "/delete", role: admin, reach: access.Fleet, page: s.deletePlugin, confirm: true},
	}
}

func (s *Server) pluginRows(ctx context.Context) ([]ui.PluginRow, error) {
	list, err := s.Plugins.List(viewerOf(ctx).actor())
	if err != nil {
		return nil, err
	}
	rows := make([]ui.PluginRow, len(list))
	for i, p := range list {
		if rows[i], err = s.pluginRow(ctx, p); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

func (s *Server) pluginRow(ctx context.Context, p plugin.Listed) (ui.PluginRow, error) {
	row := ui.PluginRow{Listed: p}
	d, err := s.Devices.Known(ctx, p.Device())
	if err == nil && d.RetiredAt == nil {
		row.Tools = d.ToolsCount
	}
	return row, unless(err, fleet.ErrNotFound)
}

func (s *Server) pluginsPage(ctx context.Context) (page ui.PluginsPage, err error) {
	page = ui.PluginsPage{Directory: s.PluginsDir, Form: forms.NewPlugin()}
	page.Rows, err = s.pluginRows(ctx)
	return page, err
}

func (s *Server) listPlugins(r *http.Request) (answer, error) {
	page, err := s.pluginsPage(r.Context())
	if err != nil {
		return answer{}, err
	}
	return show(page.Page())
}

// pluginFields are the fields of the form that show their own errors.
var pluginFields = []string{"name", "command", "args", "url", "headers_file", "tools", "audience", "offer_to_voice",
	"limits.memory", "limits.cpu", "limits.open_files", "env", "env_files"}

func (s *Server) createPlugin(r *http.Request) (answer, error) {
	if err := r.ParseForm(); err != nil {
		return answer{}, formError(err)
	}
	ctx := r.Context()
	f := forms.PostedPlugin(r.PostForm)
	f.New = true
	m, err := f.Read()
	if err == nil {
		_, err = s.Plugins.Create(ctx, viewerOf(ctx).actor(), f.Name, m)
	}
	if err == nil {
		s.flash(ctx, ui.Flash{Text: text(ctx, "plugins.added", "name", f.Name)})
		return goTo(ui.PluginPath(f.Name))
	}
	problems, ok := fieldProblems(ctx, err, pluginFields)
	if !ok {
		return answer{}, err
	}
	page, err := s.pluginsPage(ctx)
	if err != nil {
		return answer{}, err
	}
	page.Form, page.Problems = f, problems
	return showAgain(page.Page())
}

func (s *Server) pluginPage(r *http.Request) (page ui.PluginPage, err error) {
	ctx := r.Context()
	by, name := viewerOf(ctx).actor(), programName(r, "plugin")
	p, err := s.Plugins.Plugin(by, name)
	if err != nil {
		return page, err
	}
	if page.Lines, err = s.Plugins.Lines(by, name); err != nil {
		return page, err
	}
	page.Form = forms.FillPlugin(p.Plugin)
	page.Row, err = s.pluginRow(ctx, p)
	return page, err
}

func (s *Server) showPlugin(r *http.Request) (answer, error) {
	page, err := s.pluginPage(r)
	if err != nil {
		return answer{}, err
	}
	return show(page.Page())
}

func (s *Server) editPlugin(r *http.Request) (answer, error) {
	if err := r.ParseForm(); err != nil {
		return answer{}, formError(err)
	}
	ctx := r.Context()
	page, err := s.pluginPage(r)
	if err != nil {
		return answer{}, err
	}
	f := forms.PostedPlugin(r.PostForm)
	_, err = s.Plugins.Update(ctx, viewerOf(ctx).actor(), page.Row.Name, f.Version, f.Change)
	if err == nil {
		s.flash(ctx, ui.Flash{Text: text(ctx, "flash.saved")})
		return goTo(ui.PluginPath(page.Row.Name))
	}
	problems, ok := fieldProblems(ctx, err, pluginFields)
	if !ok {
		return answer{}, err
	}
	f.Name, f.Variables = page.Row.Name, page.Form.Variables
	page.Form, page.Problems = f, problems
	return showAgain(page.Page())
}

func (s *Server) reloadPlugin(r *http.Request) (answer, error) {
	ctx, name := r.Context(), programName(r, "plugin")
	_, err := s.Plugins.Restart(ctx, viewerOf(ctx).actor(), name)
	return s.programChanged(r, ui.PluginPath(name), text(ctx, "plugins.reloaded", "name", name), err)
}

func (s *Server) switchPlugin(on bool) handler {
	return func(r *http.Request) (answer, error) {
		ctx, name := r.Context(), programName(r, "plugin")
		_, err := s.Plugins.Update(ctx, viewerOf(ctx).actor(), name, policyVersion(r), func(m *plugin.Manifest) error {
			m.Disabled = !on
			return nil
		})
		return s.programChanged(r, ui.PluginPath(name), text(ctx, "flash.saved"), err)
	}
}

// deletePlugin requires the typed name, because its device retires.
func (s *Server) deletePlugin(r *http.Request) (answer, error) {
	ctx, name := r.Context(), programName(r, "plugin")
	if _, err := s.Plugins.Plugin(viewerOf(ctx).actor(), name); err != nil {
		return answer{}, err
	}
	if r.PostFormValue("confirm") != name {
		return answer{}, errNotConfirmed
	}
	if err := s.Plugins.Delete(ctx, viewerOf(ctx).actor(), name); err != nil {
		return s.programChanged(r, ui.PluginPath(name), "", err)
	}
	s.flash(ctx, ui.Flash{Text: text(ctx, "plugins.was_deleted", "name", name)})
	return goTo(ui.PathPlugins)
}

// A pluginsView follows the list of plug-ins. No event announces what a program uses.
type pluginsView struct {
	server *Server
	shown  map[string]bool
	sent   sentParts
}

func (s *Server) newPluginsView(r *http.Request) (view, error) {
	if _, err := s.Plugins.List(viewerOf(r.Context()).actor()); err != nil {
		return nil, err
	}
	v := &pluginsView{server: s, shown: make(map[string]bool), sent: sentParts{}}
	for _, name := range r.URL.Query()["shown"] {
		v.shown[name] = true
	}
	return v, nil
}

func (v *pluginsView) pace() time.Duration { return paceCounts }

func (v *pluginsView) wants(*fleet.Event) bool { return false }

func (v *pluginsView) begin(ctx context.Context) (updates, error) { return v.look(ctx) }

func (v *pluginsView) render(context.Context, []fleet.Event) (updates, error) { return updates{}, nil }

func (v *pluginsView) look(ctx context.Context) (u updates, err error) {
	rows, err := v.server.pluginRows(ctx)
	if err != nil {
		return u, err
	}
	now := make(map[string]bool, len(rows))
	for _, row := range rows {
		now[row.Name] = true
		if !v.shown[row.Name] {
			v.shown[row.Name] = true
			u.fresh++
		}
		still := row // a row is marked as moved if more than its figures changed
		still.PID, still.Memory, still.CPU = 0, 0, 0
		if err := v.sent.addIf(ctx, &u, row.Name, still.Row(), row.Row()); err != nil {
			return u, err
		}
		if err := v.sent.add(ctx, &u, "figures "+row.Name, row.Figures()); err != nil {
			return u, err
		}
	}
	for name := range v.shown {
		if now[name] {
			continue
		}
		gone := ui.PluginRow{Deleted: true}
		gone.Name = name
		if err := v.sent.add(ctx, &u, name, gone.Row()); err != nil {
			return u, err
		}
	}
	return u, nil
}

// A pluginView follows the page of one plug-in.
type pluginView struct {
	server *Server
	name   string
	sent   sentParts
	lines  []plugin.Line // that the page shows
}

func (s *Server) newPluginView(r *http.Request) (view, error) {
	v := &pluginView{server: s, name: r.URL.Query().Get("name"), sent: sentParts{}}
	_, err := s.Plugins.Plugin(viewerOf(r.Context()).actor(), v.name)
	return v, err
}

func (v *pluginView) pace() time.Duration { return paceCounts }

func (v *pluginView) wants(*fleet.Event) bool { return false }

func (v *pluginView) render(context.Context, []fleet.Event) (updates, error) { return updates{}, nil }

// begin sends the whole log: the page may have missed lines, or have lines of an earlier stream.
func (v *pluginView) begin(ctx context.Context) (u updates, err error) {
	if v.lines, err = v.server.Plugins.Lines(viewerOf(ctx).actor(), v.name); err != nil {
		return u, err
	}
	u.patches = append(u.patches, ui.PluginNews(v.lines).All())
	return u, v.state(ctx, &u)
}

func (v *pluginView) look(ctx context.Context) (u updates, err error) {
	lines, err := v.server.Plugins.Lines(viewerOf(ctx).actor(), v.name)
	if err = unless(err, fleet.ErrNotFound); err != nil {
		return u, err
	}
	if more := newLines(v.lines, lines); len(more) > 0 {
		u.patches = append(u.patches, ui.PluginNews(more).View())
		v.lines = lines
	}
	return u, v.state(ctx, &u)
}

// newLines returns the lines after the last of those that were shown.
func newLines(shown, all []plugin.Line) []plugin.Line {
	if len(shown) == 0 {
		return all
	}
	for i, l := range slices.Backward(all) {
		if l == shown[len(shown)-1] {
			return all[i+1:]
		}
	}
	return all
}

func (v *pluginView) state(ctx context.Context, u *updates) error {
	p, err := v.server.Plugins.Plugin(viewerOf(ctx).actor(), v.name)
	if errors.Is(err, fleet.ErrNotFound) {
		return v.sent.add(ctx, u, "now", ui.PluginRow{Deleted: true}.Now())
	}
	if err != nil {
		return err
	}
	row, err := v.server.pluginRow(ctx, p)
	if err != nil {
		return err
	}
	if err := v.sent.add(ctx, u, "now", row.Now()); err != nil {
		return err
	}
	return v.sent.add(ctx, u, "use", row.Use())
}
