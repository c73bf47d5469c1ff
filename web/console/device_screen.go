package console

import (
	"net/http"

	"fleetd/web/ui"
)

func (s *Server) showScreen(r *http.Request) (answer, error) {
	d, err := s.board(r)
	if err != nil {
		return answer{}, err
	}
	page := ui.ScreenPage{Head: s.head(r, d, "screen")}
	if page.Last, err = s.lastCall(r, d); err != nil {
		return answer{}, err
	}
	list := listURL(r, ui.DevicePath(d.ID, "screen"), "kind", "since", "until")
	f, err := s.pictureFilter(r)
	f.Device = d.ID
	page.Gallery, err = s.gallery(r, list, f, err)
	if errorCode(err) == "invalid_cursor" {
		return goTo(list.At(""))
	}
	if err != nil {
		return answer{}, err
	}
	if len(list.Values) == 0 {
		page.Latest = page.Head.Thumb
	}
	return show(page.Page())
}
