/* Doubly linked lists whose links are members of their elements. */
#ifndef TESTPROV_LIST_H
#define TESTPROV_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct tp_list {
	struct tp_list *next, *prev;
};

static inline void tp_list_init(struct tp_list *l)
{
	l->next = l->prev = l;
}

static inline bool tp_list_empty(const struct tp_list *l)
{
	return l->next == l;
}

/* Adds e in front of the element at. With the head of a list as at, e becomes the last element. */
static inline void tp_list_add(struct tp_list *at, struct tp_list *e)
{
	e->next = at;
	e->prev = at->prev;
	at->prev->next = e;
	at->prev = e;
}

/* Removes e from its list. On an element that is in no list, it does nothing. */
static inline void tp_list_remove(struct tp_list *e)
{
	e->prev->next = e->next;
	e->next->prev = e->prev;
	tp_list_init(e);
}

#define tp_list_first(l, type) container_of((l)->next, type, link)

/* Runs through a list. The body may remove e. */
#define tp_list_each(l, type, e)                                                        \
	for (type *e = tp_list_first(l, type), *e##_next = tp_list_first(&e->link, type); \
	     &e->link != (l); e = e##_next, e##_next = tp_list_first(&e->link, type))

#endif
