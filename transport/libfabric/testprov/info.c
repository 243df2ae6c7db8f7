/* fi_getinfo: what the provider offers, and whether that meets the hints. */
#include "testprov.h"

#define PRIMARY                                                                                   \
	(FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SEND | FI_RECV | FI_READ | FI_WRITE |       \
	 FI_REMOTE_READ | FI_REMOTE_WRITE | FI_DIRECTED_RECV | FI_MULTI_RECV | FI_SOURCE |        \
	 FI_RMA_EVENT | FI_HMEM)

/* The capabilities that a domain or an endpoint has: those of the hints if there are any, with what
 * they imply, else all. */
static uint64_t capabilities(const struct tp_manner *m, const struct fi_info *hints)
{
	uint64_t caps = hints ? hints->caps & PRIMARY : 0;

	if (!caps)
		return m->caps & ~FI_HMEM; /* only for callers that ask for it */
	if (caps & (FI_MSG | FI_TAGGED) && !(caps & (FI_SEND | FI_RECV)))
		caps |= FI_SEND | FI_RECV;
	if (caps & (FI_RMA | FI_ATOMIC) && !(caps & (FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)))
		caps |= FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
	return caps | (m->caps & FI_LOCAL_COMM);
}

static bool meets_domain(const struct tp_manner *m, const struct fi_domain_attr *h, uint32_t version)
{
	const int basic = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	int promised = h->mr_mode;

	if (h->mr_mode == FI_MR_BASIC)
		promised = basic | FI_MR_LOCAL;
	else if (h->mr_mode == FI_MR_SCALABLE || (h->mr_mode == FI_MR_UNSPEC && FI_VERSION_LT(version, FI_VERSION(1, 5))))
		promised = 0;
	if (m->mr_mode & ~promised)
		return false;
	if (h->av_type && m->av_type && (int) h->av_type != m->av_type)
		return false;
	if (h->data_progress == FI_PROGRESS_AUTO && m->progress != FI_PROGRESS_AUTO)
		return false;
	if (h->control_progress == FI_PROGRESS_AUTO && m->progress != FI_PROGRESS_AUTO)
		return false;
	if (h->threading == FI_THREAD_SAFE && m->threading != FI_THREAD_SAFE)
		return false;
	return h->mr_key_size <= m->key_size && h->cq_data_size <= sizeof(uint64_t) &&
	       h->max_ep_tx_ctx <= 1 && h->max_ep_rx_ctx <= 1 &&
	       !(h->caps & ~(FI_LOCAL_COMM | FI_SHARED_AV));
}

static bool meets(const struct tp_manner *m, const struct fi_info *h, uint32_t version)
{
	const uint64_t known = m->caps;

	if (h->caps & ~known)
		return false;
	if (h->caps & FI_HMEM && !(h->domain_attr && h->domain_attr->mr_mode & FI_MR_HMEM))
		return false;
	if (m->mode & ~h->mode)
		return false;
	if (h->addr_format && h->addr_format != m->addr_format &&
	    !(h->addr_format == FI_SOCKADDR && m->addr_format == FI_SOCKADDR_IN))
		return false;
	if (h->fabric_attr && h->fabric_attr->name && strcmp(h->fabric_attr->name, TP_NAME))
		return false;
	if (h->domain_attr && !meets_domain(m, h->domain_attr, version))
		return false;
	if (!h->domain_attr && m->mr_mode)
		return false;
	if (h->ep_attr && ((h->ep_attr->type && h->ep_attr->type != FI_EP_RDM) ||
			   (h->ep_attr->protocol && h->ep_attr->protocol != m->protocol) ||
			   h->ep_attr->max_msg_size > m->max_msg ||
			   (h->ep_attr->tx_ctx_cnt > 1) || (h->ep_attr->rx_ctx_cnt > 1)))
		return false;
	if (h->tx_attr && ((h->tx_attr->caps & ~known) || (h->tx_attr->msg_order & ~m->msg_order) ||
			   (h->tx_attr->comp_order & ~m->comp_order) ||
			   h->tx_attr->inject_size > m->inject || h->tx_attr->size > m->tx_size ||
			   h->tx_attr->iov_limit > m->iov_limit ||
			   h->tx_attr->rma_iov_limit > m->rma_iov_limit))
		return false;
	return !h->rx_attr || !((h->rx_attr->caps & ~known) || (h->rx_attr->msg_order & ~m->msg_order) ||
				(h->rx_attr->comp_order & ~m->comp_order) || h->rx_attr->size > m->rx_size ||
				h->rx_attr->iov_limit > m->iov_limit);
}

/* A size of the hints, or the default. */
static size_t wanted(size_t hint, size_t normal)
{
	return hint ? hint : normal;
}

static int fill_address(struct fi_info *i, bool source, const struct tp_addr *addr)
{
	void *raw = malloc(TP_ADDR_SIZE);

	if (!raw)
		return -FI_ENOMEM;
	tp_addr_put(i->addr_format, addr, raw);
	if (source) {
		i->src_addr = raw;
		i->src_addrlen = TP_ADDR_SIZE;
	} else {
		i->dest_addr = raw;
		i->dest_addrlen = TP_ADDR_SIZE;
	}
	return 0;
}

static void fill_domain(struct fi_domain_attr *d, const struct tp_manner *m, long nic,
			const struct fi_domain_attr *h)
{
	char name[32];

	tp_nic_domain(m, nic, name, sizeof name);
	d->name = strdup(name);
	d->threading = h && h->threading ? h->threading : (enum fi_threading) m->threading;
	d->control_progress = h && h->control_progress ? h->control_progress : (enum fi_progress) m->progress;
	d->data_progress = h && h->data_progress ? h->data_progress : (enum fi_progress) m->progress;
	d->resource_mgmt = h && h->resource_mgmt ? h->resource_mgmt : FI_RM_ENABLED;
	d->av_type = m->av_type ? (enum fi_av_type) m->av_type : h ? h->av_type : FI_AV_UNSPEC;
	d->mr_mode = m->mr_mode;
	if (h && h->mr_mode == FI_MR_BASIC)
		d->mr_mode = FI_MR_BASIC;
	else if (h && h->mr_mode == FI_MR_SCALABLE)
		d->mr_mode = FI_MR_SCALABLE;
	d->mr_key_size = m->key_size;
	d->cq_data_size = sizeof(uint64_t);
	d->cq_cnt = d->ep_cnt = d->cntr_cnt = 256;
	d->tx_ctx_cnt = d->rx_ctx_cnt = 256;
	d->max_ep_tx_ctx = d->max_ep_rx_ctx = 1;
	d->mr_iov_limit = TP_IOV_MAX;
	d->mr_cnt = 65536;
	d->caps = FI_LOCAL_COMM;
	d->max_err_data = TP_ERR_DATA;
}

/* Returns the offer of an adapter in the manner of the script to a caller with these hints, or NULL if
 * there is no memory. */
static struct fi_info *offer(const struct tp_script *s, long nic, const struct fi_info *h)
{
	const struct tp_manner *m = &s->m;
	struct fi_info *i = fi_allocinfo();
	const uint64_t tx = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SEND | FI_READ | FI_WRITE;
	const uint64_t rx = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_RECV | FI_REMOTE_READ |
			    FI_REMOTE_WRITE | FI_DIRECTED_RECV | FI_MULTI_RECV | FI_SOURCE | FI_RMA_EVENT;

	if (!i)
		return NULL;
	i->caps = capabilities(m, h);
	i->mode = m->mode;
	i->addr_format = m->addr_format;
	i->fabric_attr->name = strdup(TP_NAME);
	i->fabric_attr->prov_version = tp_provider.version;
	fill_domain(i->domain_attr, m, nic, h ? h->domain_attr : NULL);
	if (i->caps & FI_HMEM)
		i->domain_attr->mr_mode |= FI_MR_HMEM;
	i->ep_attr->type = FI_EP_RDM;
	i->ep_attr->protocol = m->protocol;
	i->ep_attr->protocol_version = 1;
	i->ep_attr->max_msg_size = m->max_msg;
	if (m->msg_order & (FI_ORDER_RAW | FI_ORDER_RMA_RAW))
		i->ep_attr->max_order_raw_size = m->max_msg;
	if (m->msg_order & (FI_ORDER_WAR | FI_ORDER_RMA_WAR))
		i->ep_attr->max_order_war_size = m->max_msg;
	if (m->msg_order & (FI_ORDER_WAW | FI_ORDER_RMA_WAW))
		i->ep_attr->max_order_waw_size = m->max_msg;
	i->ep_attr->mem_tag_format = UINT64_MAX >> 1;
	i->ep_attr->tx_ctx_cnt = i->ep_attr->rx_ctx_cnt = 1;
	*i->tx_attr = (struct fi_tx_attr){
		.caps = i->caps & tx, .mode = m->mode, .msg_order = m->msg_order,
		.comp_order = m->comp_order, .inject_size = m->inject, .size = m->tx_size,
		.iov_limit = m->iov_limit, .rma_iov_limit = m->rma_iov_limit,
		.op_flags = h && h->tx_attr ? h->tx_attr->op_flags : 0,
	};
	*i->rx_attr = (struct fi_rx_attr){
		.caps = i->caps & rx, .mode = m->mode, .msg_order = m->msg_order,
		.comp_order = m->comp_order, .size = m->rx_size, .iov_limit = m->iov_limit,
		.op_flags = h && h->rx_attr ? h->rx_attr->op_flags : 0,
	};
	if (h && h->tx_attr) {
		/* A caller that asks for less order gets no more than that. */
		if (h->tx_attr->msg_order)
			i->tx_attr->msg_order = i->rx_attr->msg_order = h->tx_attr->msg_order;
		i->tx_attr->size = wanted(h->tx_attr->size, m->tx_size);
	}
	if (h && h->rx_attr)
		i->rx_attr->size = wanted(h->rx_attr->size, m->rx_size);
	if (s->nics)
		i->nic = tp_nic_new(nic);
	if (!i->domain_attr->name || !i->fabric_attr->name || (s->nics && !i->nic)) {
		fi_freeinfo(i);
		return NULL;
	}
	return i;
}

/* The provider answers only callers that name it or that have a script, so that no program takes
 * it by accident. */
static bool asked_for(const struct fi_info *h)
{
	return getenv(TP_SCRIPT) || (h && h->fabric_attr && h->fabric_attr->prov_name &&
				     !strcasecmp(h->fabric_attr->prov_name, TP_NAME));
}

/* Sets the addresses of the offer i of an adapter. Without a node in the call and the hints, the source
 * is the address of the loopback network that belongs to the adapter. */
static int fill_addresses(struct fi_info *i, long nic, const char *node, const char *service, uint64_t flags,
			  const struct fi_info *hints)
{
	struct tp_addr at;
	int rc = 0;

	if (node || service) {
		rc = tp_addr_parse(node, service, &at);
		if (!rc)
			rc = fill_address(i, flags & FI_SOURCE, &at);
	} else if (hints && hints->dest_addr && tp_addr_get(i->addr_format, hints->dest_addr, hints->dest_addrlen, &at)) {
		rc = fill_address(i, false, &at);
	}
	if (!rc && !i->src_addr) {
		at = (struct tp_addr){.ip = 0x7f000001 + (uint32_t) nic};
		if (hints && hints->src_addr)
			tp_addr_get(i->addr_format, hints->src_addr, hints->src_addrlen, &at);
		rc = fill_address(i, true, &at);
	}
	return rc;
}

int tp_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
	       const struct fi_info *hints, struct fi_info **info)
{
	const char *domain = hints && hints->domain_attr ? hints->domain_attr->name : NULL;
	struct tp_script s;
	struct fi_info *list = NULL;
	int rc;

	if (!asked_for(hints))
		return -FI_ENODATA;
	rc = tp_script_read(&s);
	if (rc)
		return rc;
	if (hints && !meets(&s.m, hints, version))
		return -FI_ENODATA;
	for (long nic = s.nics ? s.nics - 1 : 0; nic >= 0; nic--) {
		struct fi_info *i;

		if (domain && tp_nic_of(&s.m, domain) != nic)
			continue;
		i = offer(&s, nic, hints);
		if (!i) {
			fi_freeinfo(list);
			return -FI_ENOMEM;
		}
		i->next = list;
		list = i;
		rc = fill_addresses(i, nic, node, service, flags, hints);
		if (rc) {
			fi_freeinfo(list);
			return rc;
		}
	}
	if (!list)
		return -FI_ENODATA;
	*info = list;
	return 0;
}

struct fi_provider tp_provider = {
	.version = FI_VERSION(1, 0),
	.fi_version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION),
	.name = TP_NAME,
	.getinfo = tp_getinfo,
	.fabric = tp_fabric_open,
};

FI_EXT_INI
{
	return &tp_provider;
}
