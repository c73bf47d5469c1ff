// Command quotes is a plug-in with resources: quotes://today, which changes every
// 30 seconds, and quotes://author/{name}.
//
// It shows a resource to which clients subscribe: they get a notification when it
// has changed, and read it again. The SDK keeps the subscriptions of each session.
// It also shows a resource template, with completion of its variable.
//
// The authors of quotes.json have been dead for more than a hundred years.
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	today        = "quotes://today"
	authorPrefix = "quotes://author/"
	author       = authorPrefix + "{name}"
)

//go:embed quotes.json
var quotesJSON []byte

type quote struct{ Author, Source, Text string }

func (q quote) String() string { return fmt.Sprintf("%s (%s, %s)", q.Text, q.Author, q.Source) }

func main() {
	every := flag.Duration("every", 30*time.Second, "how long quotes://today keeps its quote; 0 for ever")
	flag.Parse()
	var quotes []quote
	if err := json.Unmarshal(quotesJSON, &quotes); err != nil {
		log.Fatal(err) // to standard error; standard output carries the protocol
	}

	server := mcp.NewServer(&mcp.Implementation{Name: "quotes", Version: "1.0.0"}, &mcp.ServerOptions{
		SubscribeHandler: func(_ context.Context, req *mcp.SubscribeRequest) error {
			if req.Params.URI != today {
				return mcp.ResourceNotFoundError(req.Params.URI) // the quotes of an author never change
			}
			return nil
		},
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
		CompletionHandler: func(_ context.Context, req *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
			typed := strings.ToLower(req.Params.Argument.Value)
			names := []string{} // not nil, which would become null in JSON
			for _, q := range quotes {
				if req.Params.Ref.URI == author && strings.HasPrefix(strings.ToLower(q.Author), typed) {
					names = append(names, q.Author)
				}
			}
			names = slices.Compact(names) // quotes.json is sorted by author
			return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: names, Total: len(names)}}, nil
		},
	})

	var current atomic.Int64
	server.AddResource(&mcp.Resource{
		URI: today, Name: "today", Title: "Quote of the day", MIMEType: "text/plain",
		Description: fmt.Sprintf("A quote that changes every %v.", *every),
	}, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return text(today, quotes[current.Load()]), nil
	})
	server.AddResourceTemplate(&mcp.ResourceTemplate{
		URITemplate: author, Name: "author", Title: "Quotes of an author", MIMEType: "text/plain",
		Description: "The quotes of an author, one per line.",
	}, func(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		// In a URI, a space is %20, and 李白 is %E6%9D%8E%E7%99%BD.
		name, err := url.PathUnescape(strings.TrimPrefix(req.Params.URI, authorPrefix))
		found := slices.DeleteFunc(slices.Clone(quotes), func(q quote) bool { return !strings.EqualFold(q.Author, name) })
		if err != nil || len(found) == 0 {
			return nil, mcp.ResourceNotFoundError(req.Params.URI)
		}
		return text(req.Params.URI, found...), nil
	})

	go func() {
		for range time.Tick(*every) {
			current.Store((current.Load() + 1) % int64(len(quotes)))
			// The SDK notifies the sessions with a subscription. Its error is always nil.
			_ = server.ResourceUpdated(context.Background(), &mcp.ResourceUpdatedNotificationParams{URI: today})
		}
	}()
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		log.Fatal(err)
	}
}

func text(uri string, quotes ...quote) *mcp.ReadResourceResult {
	var b strings.Builder
	for _, q := range quotes {
		fmt.Fprintln(&b, q)
	}
	contents := &mcp.ResourceContents{URI: uri, MIMEType: "text/plain", Text: b.String()}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{contents}}
}
