package calls

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/picture"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// pictureRoutes are the galleries, and the pages of one picture and of two.
func (s *Server) pictureRoutes() []pages.Route {
	const get, viewer = http.MethodGet, fleet.RoleViewer
	return []pages.Route{
		{Method: get, Pattern: ui.PathCompare, Role: viewer, Reach: access.List, Page: s.comparePictures},
		{Method: get, Pattern: ui.PathPictures + "/{snapshot}", Role: viewer, Reach: access.Record, Page: s.showPicture},
		{Method: get, Pattern: ui.PathFanOuts + "/{fanout}/pictures", Role: viewer, Reach: access.Audience,
			Page: s.showFanOutPictures},
		{Method: get, Pattern: "/snapshots/{snapshot}", Role: viewer, Reach: access.Record, Raw: s.sendSnapshot},
	}
}

// PictureFilter reads from an address which pictures it is about.
func (s *Server) PictureFilter(r *http.Request) (f picture.Filter, err error) {
	q, zone := r.URL.Query(), pages.ViewerOf(r.Context()).Zone
	switch kind := picture.SnapshotKind(q.Get("kind")); kind {
	case picture.SnapshotScreen, picture.SnapshotCamera:
		f.Kind = kind
	}
	since, err := pages.FormMoment(q, "since", zone)
	if err != nil {
		return f, err
	}
	until, err := pages.FormMoment(q, "until", zone)
	if err != nil {
		return f, err
	}
	if since != nil {
		f.Since = *since
	}
	if until != nil {
		f.Until = *until
	}
	return f, nil
}

// Gallery returns the pictures that a filter selects.
func (s *Server) Gallery(r *http.Request, list ui.ListURL, f picture.Filter, err error) (ui.Gallery, error) {
	ctx := r.Context()
	g := ui.Gallery{List: list, SinceText: list.Get("since"), UntilText: list.Get("until")}
	if f.FanOut != uuid.Nil {
		g.FanOut = f.FanOut.String()
	}
	if err != nil {
		if pages.StatusOf(err) != http.StatusUnprocessableEntity {
			return g, err
		}
		g.Problem = pages.Explain(ctx, err)
		return g, nil
	}
	f.Limit, f.Cursor = pages.LimitOf(list), list.Get("cursor")
	found, err := s.Pictures.Snapshots(ctx, f)
	if err != nil {
		return g, err
	}
	g.Prev, g.Next = found.Prev, found.Next
	g.Pictures, err = s.pictures(ctx, found.Items)
	return g, err
}

// pictures returns pictures with who took them and the names of their devices.
func (s *Server) pictures(ctx context.Context, shots []picture.Snapshot) ([]ui.Snapshot, error) {
	callers, err := s.Pictures.Callers(ctx, shots)
	if err != nil {
		return nil, err
	}
	var ids []fleet.DeviceID
	for _, shot := range shots {
		ids = append(ids, shot.Device)
	}
	names, err := s.DeviceNames(ctx, ids)
	if err != nil {
		return nil, err
	}
	views := make([]ui.Snapshot, len(shots))
	for i, shot := range shots {
		views[i] = Snapshot(shot)
		views[i].Actor, views[i].DeviceName = callers[shot.Call], names[shot.Device]
	}
	return views, nil
}

// picture returns one picture as [Server.pictures] does; nil for nil.
func (s *Server) picture(ctx context.Context, shot *picture.Snapshot) (*ui.Snapshot, error) {
	if shot == nil {
		return nil, nil
	}
	all, err := s.pictures(ctx, []picture.Snapshot{*shot})
	if err != nil {
		return nil, err
	}
	return &all[0], nil
}

func (s *Server) showFanOutPictures(r *http.Request) (pages.Answer, error) {
	id, err := fanOutID(r)
	if err != nil {
		return pages.Answer{}, err
	}
	f, err := s.FanOuts.Get(r.Context(), id)
	if err != nil {
		return pages.Answer{}, err
	}
	list := pages.ListURL(r, ui.FanOutPath(id.String(), "pictures"), "kind", "since", "until")
	filter, err := s.PictureFilter(r)
	filter.FanOut = id
	page := ui.FanOutPicturesPage{ID: id.String(), Tool: f.Tool}
	page.Gallery, err = s.Gallery(r, list, filter, err)
	if pages.ErrorCode(err) == "invalid_cursor" {
		return pages.GoTo(list.At(""))
	}
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

func (s *Server) showPicture(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	shot, err := s.pictureOf(ctx, chi.URLParam(r, "snapshot"))
	if err != nil {
		return pages.Answer{}, err
	}
	f, err := s.PictureFilter(r)
	if err != nil {
		return pages.GoTo(ui.PicturePath(shot.ID.String())) // the filter of the address is no filter
	}
	page := ui.PicturePage{Filter: url.Values{}}
	for _, name := range []string{"kind", "since", "until", "fanout"} {
		if v := r.URL.Query().Get(name); v != "" {
			page.Filter.Set(name, v)
		}
	}
	if f.FanOut, err = uuid.Parse(page.Filter.Get("fanout")); err != nil {
		page.Filter.Del("fanout")
		f.Device = shot.Device
	}
	before, after, err := s.Pictures.SnapshotsAround(ctx, f, shot)
	if err != nil {
		return pages.Answer{}, err
	}
	_, older, err := s.Pictures.SnapshotsAround(ctx, picture.Filter{Device: shot.Device, Kind: shot.Kind}, shot)
	if err != nil {
		return pages.Answer{}, err
	}
	this, err := s.picture(ctx, &shot)
	if err != nil {
		return pages.Answer{}, err
	}
	page.Picture = *this
	page.Before, page.After, page.Older = neighbour(before), neighbour(after), neighbour(older)
	return pages.Show(page.Page())
}

// neighbour returns a picture that a page only links to.
func neighbour(shot *picture.Snapshot) *ui.Snapshot {
	if shot == nil {
		return nil
	}
	view := Snapshot(*shot)
	return &view
}

// pictureOf returns the picture with an id of an address.
func (s *Server) pictureOf(ctx context.Context, text string) (picture.Snapshot, error) {
	id, err := uuid.Parse(text)
	if err != nil {
		return picture.Snapshot{}, pages.ErrNoPage
	}
	return s.Pictures.Snapshot(ctx, id)
}

// comparePictures shows two pictures. The address of a form names them as p, or names one and the
// device of the other; such an address leads to one with a and b, which can be shared.
func (s *Server) comparePictures(r *http.Request) (pages.Answer, error) {
	ctx, q := r.Context(), r.URL.Query()
	page := ui.ComparePage{Overlay: q.Get("view") == ui.ViewOverlay}
	if chosen := q["p"]; len(chosen) > 0 {
		if len(chosen) == 2 {
			return pages.GoTo(ui.CompareURL(chosen[1], chosen[0], page.Overlay)) // a list has the newest first
		}
		page.Problem = pages.Text(ctx, "pictures.not_two", "n", len(chosen))
		return pages.Show(page.Page())
	}
	var err error
	if page.A, err = s.compared(ctx, q.Get("a")); err != nil {
		return pages.Answer{}, err
	}
	if page.B, err = s.compared(ctx, q.Get("b")); err != nil {
		return pages.Answer{}, err
	}
	if asked := q.Get("device"); page.A != nil && page.B == nil && asked != "" {
		kind := picture.SnapshotScreen
		if page.A.Camera {
			kind = picture.SnapshotCamera
		}
		id, err := fleet.ParseDeviceID(asked)
		var newest picture.Snapshot
		if err == nil {
			newest, err = picture.Newest(ctx, s.Pictures, id, kind)
		}
		switch {
		case err == nil:
			return pages.GoTo(ui.CompareURL(page.A.ID, newest.ID.String(), page.Overlay))
		case errors.Is(err, fleet.ErrNotFound):
			page.Problem = pages.Text(ctx, "pictures.none_of_device")
		case pages.StatusOf(err) == http.StatusUnprocessableEntity:
			page.Problem = pages.Explain(ctx, err)
		default:
			return pages.Answer{}, err
		}
	}
	return pages.Show(page.Page())
}

// compared returns one side of a comparison; nil without an id.
func (s *Server) compared(ctx context.Context, id string) (*ui.ComparedPicture, error) {
	if id == "" {
		return nil, nil
	}
	shot, err := s.pictureOf(ctx, id)
	if err != nil {
		return nil, err
	}
	newer, older, err := s.Pictures.SnapshotsAround(ctx, picture.Filter{Device: shot.Device, Kind: shot.Kind}, shot)
	if err != nil {
		return nil, err
	}
	this, err := s.picture(ctx, &shot)
	if err != nil {
		return nil, err
	}
	return &ui.ComparedPicture{Snapshot: *this, Newer: neighbour(newer), Older: neighbour(older)}, nil
}
