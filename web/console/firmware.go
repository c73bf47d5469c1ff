package console

import (
	"context"
	"net/http"
	"net/url"
	"slices"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/fleet/heavy"
	"fleetd/web/access"
	"fleetd/web/ui"
)

// firmwareRoutes are the pages of images and releases.
func (s *Server) firmwareRoutes() []route {
	const viewer, operator, admin = fleet.RoleViewer, fleet.RoleOperator, fleet.RoleAdmin
	image, release := ui.PathImages+"/{image}", ui.PathReleases+"/{release}"
	return []route{
		{method: "GET", pattern: ui.PathFirmware, role: viewer, reach: access.Shared, page: s.listReleases},
		{method: "GET", pattern: ui.PathImages, role: viewer, reach: access.Shared, page: s.listImages},
		{method: "POST", pattern: ui.PathImages, role: operator, reach: access.Fleet,
			raw: s.uploadImages, body: uploadsBytes, heavy: heavy.Upload},
		{method: "POST", pattern: ui.PathImages + "/confirm", role: operator, reach: access.Fleet, page: s.confirmImages},
		{method: "GET", pattern: image, role: viewer, reach: access.Shared, page: s.showImage},
		{method: "POST", pattern: image + "/edit", role: operator, reach: access.Fleet, page: s.editImage},
		{method: "POST", pattern: image + "/manifest", role: operator, reach: access.Fleet,
			page: s.signImage, body: manifestFormBytes, heavy: heavy.Upload},
		{method: "POST", pattern: image + "/revoke", role: admin, reach: access.Fleet, page: s.revokeImage},
		{method: "POST", pattern: image + "/delete", role: operator, reach: access.Fleet, page: s.deleteImage},
		{method: "GET", pattern: ui.PathReleaseNew, role: operator, reach: access.Fleet, page: s.newRelease},
		{method: "POST", pattern: ui.PathReleases, role: operator, reach: access.Fleet, page: s.createRelease},
		{method: "GET", pattern: release, role: viewer, reach: access.Shared, page: s.showRelease},
		{method: "GET", pattern: release + "/edit", role: operator, reach: access.Fleet, page: s.showReleaseEdit},
		{method: "POST", pattern: release + "/edit", role: operator, reach: access.Fleet, page: s.editRelease},
		{method: "POST", pattern: release + "/state", role: operator, reach: access.Fleet, page: s.setReleaseState},
		{method: "POST", pattern: release + "/revoke", role: admin, reach: access.Fleet, page: s.revokeRelease},
	}
}

// Maximum lengths of lists on firmware pages.
const (
	countedCampaigns = fleet.MaxLimit // the newest; older ones are not counted with their release
	searchedReleases = fleet.MaxLimit // the newest; an image's page lists those that contain it
	offeredBoards    = 100
	offeredDrafts    = 20
)

func (s *Server) listReleases(r *http.Request) (answer, error) {
	ctx := r.Context()
	page := ui.ReleasesPage{List: listURL(r, ui.PathFirmware, "state"), CanAct: mayKeepFirmware(ctx)}
	f := firmware.ReleaseFilter{Limit: limitOf(page.List), Cursor: page.List.Get("cursor")}
	if state := firmware.ReleaseState(page.List.Get("state")); slices.Contains(firmware.ReleaseStates, state) {
		f.State = state
	}
	found, err := s.Firmware.Releases(ctx, f)
	if errorCode(err) == "invalid_cursor" {
		return goTo(page.List.At(""))
	}
	if err != nil {
		return answer{}, err
	}
	if page.Rows, err = s.releaseRows(ctx, found.Items); err != nil {
		return answer{}, err
	}
	page.Next = found.Next
	if len(page.Rows) == 0 && page.List.Path == ui.PathFirmware && len(page.List.Values) == 0 {
		if page.Empty, err = s.noImages(ctx); err != nil {
			return answer{}, err
		}
		if page.Upload, err = s.uploadBox(ctx); err != nil {
			return answer{}, err
		}
	}
	return show(page.Page())
}

// releaseRows counts, for each release, the devices that run it and the campaigns that used it.
func (s *Server) releaseRows(ctx context.Context, all []firmware.Release) (rows []ui.ReleaseRow, err error) {
	var elves []string
	for _, r := range all {
		elves = append(elves, builds(r.Images)...)
	}
	running, err := s.runningBuilds(ctx, elves)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	used, err := s.campaignsByRelease(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		rows = append(rows, ui.NewReleaseRow(r, running.of(builds(r.Images)), used[r.ID]))
	}
	return rows, nil
}

// builds returns the different builds of some images.
func builds(images []firmware.Image) (elves []string) {
	for _, i := range images {
		if i.ELFSHA256 != "" { // without it, devices with the build cannot be recognized
			elves = append(elves, i.ELFSHA256)
		}
	}
	slices.Sort(elves)
	return slices.Compact(elves)
}

// A runningCount counts the devices by build.
type runningCount struct {
	byELF map[string]int
	fleet int
}

func (s *Server) runningBuilds(ctx context.Context, elves []string) (c runningCount, err error) {
	summary, err := s.summary(ctx)
	if err != nil {
		return c, err
	}
	slices.Sort(elves)
	c.fleet = summary.fleet
	c.byELF, err = s.Firmware.RunningByELF(ctx, slices.Compact(elves))
	return c, err
}

func (c runningCount) of(elves []string) ui.Running {
	r := ui.Running{Fleet: c.fleet}
	for _, elf := range elves {
		r.Count += c.byELF[elf]
	}
	return r
}

func (s *Server) campaignsByRelease(ctx context.Context) (map[uuid.UUID]int, error) {
	found, err := s.Campaigns.Campaigns(ctx, campaign.Filter{Limit: countedCampaigns})
	used := make(map[uuid.UUID]int)
	for _, c := range found.Items {
		used[c.Plan.Release]++
	}
	return used, err
}

func (s *Server) noImages(ctx context.Context) (bool, error) {
	found, err := s.Firmware.Images(ctx, firmware.ImageFilter{Limit: 1})
	return len(found.Items) == 0, err
}

func (s *Server) listImages(r *http.Request) (answer, error) {
	page, err := s.imagesPage(r.Context(), listURL(r, ui.PathImages, "chip", "board"))
	if errorCode(err) == "invalid_cursor" {
		return goTo(page.List.At(""))
	}
	if err != nil {
		return answer{}, err
	}
	return show(page.Page())
}

func (s *Server) imagesPage(ctx context.Context, list ui.ListURL) (ui.ImagesPage, error) {
	page := ui.ImagesPage{List: list, CanAct: mayKeepFirmware(ctx)}
	found, err := s.Firmware.Images(ctx, firmware.ImageFilter{Chip: list.Get("chip"), Board: list.Get("board"),
		Limit: limitOf(list), Cursor: list.Get("cursor")})
	if err != nil {
		return page, err
	}
	if page.Rows, err = s.imageRows(ctx, found.Items); err != nil {
		return page, err
	}
	page.Next = found.Next
	page.Empty = len(page.Rows) == 0 && len(list.Values) == 0
	if page.Upload, err = s.uploadBox(ctx); err != nil {
		return page, err
	}
	page.Chips, err = s.knownChips(ctx, list.Get("chip"), page.Rows)
	return page, err
}

func (s *Server) imageRows(ctx context.Context, images []firmware.Image) (rows []ui.ImageRow, err error) {
	running, err := s.runningBuilds(ctx, builds(images))
	if err != nil {
		return nil, err
	}
	limits, err := s.Firmware.Limits(ctx, images)
	for _, i := range images {
		row := ui.NewImageRow(i, running.of([]string{i.ELFSHA256}), mayKeepFirmware(ctx))
		row.Withheld = whyWithheld(ctx, limits.Why(i, ""))
		rows = append(rows, row)
	}
	return rows, err
}

// whyWithheld returns the reason, in the page's language, why no device would get an image today.
func whyWithheld(ctx context.Context, why fleet.Reason) string {
	if why.Is("") {
		return ""
	}
	return explain(ctx, &fleet.Error{Code: why.Code, Params: why.Params})
}

// knownChips returns the chips of the fleet and of the images on the page.
func (s *Server) knownChips(ctx context.Context, asked string, rows []ui.ImageRow) ([]string, error) {
	counts, err := s.Devices.CountBy(ctx, fleet.Query{}, "chip")
	chips := []string{asked}
	for _, c := range counts {
		chips = append(chips, c.Value)
	}
	for _, i := range rows {
		chips = append(chips, i.Chip)
	}
	slices.Sort(chips)
	chips = slices.Compact(chips)
	return slices.DeleteFunc(chips, func(c string) bool { return c == "" }), err
}

func (s *Server) uploadBox(ctx context.Context) (box ui.UploadBox, err error) {
	if box.Boards, err = s.boardsOf(ctx, fleet.Query{}); err != nil {
		return box, err
	}
	drafts, err := s.Firmware.Releases(ctx, firmware.ReleaseFilter{State: firmware.ReleaseDraft, Limit: offeredDrafts})
	box.Drafts = drafts.Items
	return box, err
}

// boardsOf returns the boards of the matching devices, most frequent first.
func (s *Server) boardsOf(ctx context.Context, q fleet.Query) (boards []string, err error) {
	counts, err := s.Devices.CountBy(ctx, q, "board")
	for _, c := range counts[:min(len(counts), offeredBoards)] {
		if c.Value != "" {
			boards = append(boards, c.Value)
		}
	}
	return boards, err
}

// image reads the image in the address.
func (s *Server) image(r *http.Request) (firmware.Image, error) {
	sum, err := url.PathUnescape(chi.URLParam(r, "image"))
	if err != nil || !isSHA256(sum) {
		return firmware.Image{}, errNoPage
	}
	return s.Firmware.Image(r.Context(), sum)
}

func isSHA256(s string) bool {
	return len(s) == 64 && !slices.ContainsFunc([]byte(s), func(c byte) bool {
		return (c < '0' || c > '9') &&
			(c < 'a' || c > 'f')
	})
}

// release reads the release in the address.
func (s *Server) release(r *http.Request) (firmware.Release, error) {
	id, err := uuid.Parse(chi.URLParam(r, "release"))
	if err != nil {
		return firmware.Release{}, errNoPage
	}
	return s.Firmware.Release(r.Context(), id)
}
